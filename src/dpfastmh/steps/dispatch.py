"""One name, several models: compiled functions chosen by the class of their first argument.

A model reaches the compiled loop as a ``NamedTuple``. ``generic`` declares an operation; ``@operation.of(SomeClass)``
supplies it for one class. Numba looks the class up while it compiles, so the choice costs nothing at run time::

    @generic
    def slope(loss, eta, y): ...

    @slope.of(Logistic)
    def _(loss, eta, y):
        return sigmoid(eta) - y

``source_stamp`` is a number made from every source file of the package. The cached loop closes over it: Numba's disk
cache looks only at the file that holds the loop, and would otherwise run stale code after any other file had changed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import types
from numba.extending import overload

from dpfastmh.steps.elementary import INNER


class Generic:
    """A compiled operation with one implementation per class of its first argument."""

    def __init__(self, stub: Callable[..., Any], inline: bool) -> None:
        functools.update_wrapper(self, stub)
        self.implementations: dict[type, Callable[..., Any]] = {}

        def choose(*arguments: Any) -> Callable[..., Any] | None:
            first = arguments[0]
            if not isinstance(first, types.NamedTuple | types.NamedUniTuple):
                return None
            return self.find(first.instance_class)

        choose.__signature__ = inspect.signature(stub)  # type: ignore[attr-defined]
        # Numba resolves the call by the object that compiled code names, which is this one
        overload(self, strict=False, jit_options={**INNER, "forceinline": inline})(choose)

    def find(self, cls: type) -> Callable[..., Any] | None:
        """The implementation for ``cls`` or its nearest base."""
        return next((self.implementations[base] for base in cls.__mro__ if base in self.implementations), None)

    def of(self, *classes: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: this function is the operation for these classes."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for cls in classes:
                self.implementations[cls] = function
            return function

        return register

    def __call__(self, first: Any, *rest: Any) -> Any:
        """The same operation in plain Python: for tests and small jobs."""
        implementation = self.find(type(first))
        if implementation is None:
            raise TypeError(f"{self.__name__} is not defined for {type(first).__name__}")  # type: ignore[attr-defined]
        return implementation(first, *rest)


def generic(stub: Callable[..., Any]) -> Generic:
    """Declare a compiled operation; the body of ``stub`` is only its documentation."""
    return Generic(stub, inline=False)


def generic_inlined(stub: Callable[..., Any]) -> Generic:
    """A compiled operation that dissolves into its caller: scalars inside vectorised loops, and the hottest steps."""
    return Generic(stub, inline=True)


@functools.cache
def source_stamp() -> int:
    """A number that changes whenever any source file of the package does."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return int.from_bytes(digest.digest(), "little")
