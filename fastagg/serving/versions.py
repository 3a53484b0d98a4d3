"""Model versions still in flight, by reference count."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from fastagg.errors import UnknownVersion


class VersionStore:
    """Keeps a version of the model for exactly as long as some client may still answer it.

    AsyncFedED's paper (003, GMIS) stores every version ever sent; one that no client holds any more can never be
    asked for again. Versions are immutable tensors shared with whoever else holds them: storing one copies nothing.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, int]] = {}

    def acquire(self, version: int, model: Tensor) -> None:
        """Count one more client in flight on ``version``, whose parameters are ``model`` ([d], never changed)."""
        kept, count = self._held.get(version, (model, 0))
        self._held[version] = (kept, count + 1)

    def release(self, version: int) -> None:
        """Count one client less; the last one frees the version.

        Raises:
            UnknownVersion: nobody holds it.
        """
        model, count = self._held.get(version, (None, 0))
        if model is None:
            raise UnknownVersion(f"version {version} is not in flight")
        if count == 1:
            del self._held[version]
        else:
            self._held[version] = (model, count - 1)

    def get(self, version: int) -> Tensor:
        """The parameters of a version in flight, [d].

        Raises:
            UnknownVersion: nobody holds it.
        """
        if version not in self._held:
            raise UnknownVersion(f"version {version} is not in flight")
        return self._held[version][0]

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def nbytes(self) -> int:
        """Bytes of all versions held."""
        return sum(model.numel() * model.element_size() for model, _ in self._held.values())

    def state_dict(self) -> dict[int, tuple[Tensor, int]]:
        """Version -> (parameters, clients holding it)."""
        return dict(self._held)

    def load_state_dict(self, state: dict[int, tuple[Tensor, int]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._held = dict(state)
