"""PRIVATE side. Where rows live."""
