"""dpfastmh beside the field: NUTS samplers for speed, private estimators for usefulness. ``python -m field --help``."""
