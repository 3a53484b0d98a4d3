"""The registry: every part and preset by name, users' own beside them, and checkpoints that need them."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack, get_args, get_type_hints

import pytest
import torch
from support.models import same

import fastagg
from fastagg import _keywords, registry
from fastagg.errors import CheckpointError, ConfigError, MissingPart
from fastagg.rules import names
from fastagg.server.settings import RULES
from fastagg.storage.cache import FORMATS

D = 40
KINDS = {"direction": fastagg.Direction, "optimizer": fastagg.Optimizer, "staleness": fastagg.Staleness}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    yield


@dataclass(frozen=True)
class Inverse(fastagg.Staleness):
    """``s(tau) = 1/(1 + tau)^power``, and nothing at all beyond ``limits[1]``."""

    power: float = 1.0
    limits: tuple[int, int] = (0, 100)
    weighs = True

    def weight(self, delay: int) -> float:
        return 0.0 if delay > self.limits[1] else (1.0 + delay) ** -self.power


@dataclass(frozen=True)
class Labelled(fastagg.SGD):
    """SGD by another name."""

    label: str = "none"


@dataclass(frozen=True)
class Delayed(fastagg.Buffer):
    """A buffer by another name."""

    note: str = field(default="none", kw_only=True)


def server(**parts: Any) -> fastagg.Server:
    return fastagg.Server(torch.linspace(-1, 1, D), **parts, seed=3)


def play(server: fastagg.Server, turns: range) -> None:
    for turn in turns:
        client = turn % 3
        server.dispatch(client)
        if turn % 2:
            server.receive(client, torch.linspace(0, 1 + turn, D))


# ── the package's own ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_part_in_the_public_surface_is_registered_and_no_other() -> None:
    public = [thing for thing in (getattr(fastagg, name) for name in fastagg.__all__) if isinstance(thing, type)]
    for kind, of in KINDS.items():
        expected = {part.__name__: part for part in public if issubclass(part, of) and part is not of}
        own = {name: part for name, part in registry.parts(kind).items() if part.__module__.startswith("fastagg.")}
        assert own == expected
    assert all(registry.parts(kind) for kind in KINDS)


def test_presets_are_the_public_functions_of_their_module() -> None:
    public = {n for n, f in vars(fastagg.presets).items() if inspect.isfunction(f) and n[0].isupper()}
    assert set(registry.presets()) == public and len(public) >= 17
    assert all(getattr(fastagg, name) is preset for name, preset in registry.presets().items())
    with pytest.raises(TypeError):
        registry.presets()["Mine"] = fastagg.FADAS  # type: ignore[index]


def test_the_typed_settings_are_the_servers_own() -> None:
    """Names, types and no more; a preset's own and those it passes on never overlap, and together they are all."""
    typed = get_type_hints(fastagg.ServerSettings)
    assert get_type_hints(fastagg.Server.__init__)["settings"] == Unpack[fastagg.ServerSettings]
    keywords = [p for p in inspect.signature(fastagg.Server).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert {p.name for p in keywords} == set(typed)
    server = fastagg.Server(torch.zeros(2))
    for name in typed:
        assert getattr(server, name) == RULES[name].default or name == "device"
    for name, preset in registry.presets().items():
        parameters = _keywords.of(preset).named
        (passed_on,) = get_args(get_type_hints(preset)["server"])
        assert not set(parameters) & set(passed_on.__annotations__), name
        assert _keywords.of(preset).settings >= typed.keys() - {"weighting", "num_clients"}, name
        counts_alike = name in ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum")
        assert {"num_clients", *(() if counts_alike else ("weighting",))} <= _keywords.of(preset).settings, name


def test_formats_of_rows_are_those_of_the_kernels() -> None:
    assert get_args(names.Cache) == tuple(FORMATS)


# ── users' own ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mine", "parts"),
    [
        (Inverse, {"staleness": Inverse(0.5, (1, 7)), "direction": fastagg.Single()}),
        (Labelled, {"optimizer": Labelled(0.25, label="mine"), "direction": fastagg.Buffer(2)}),
        (Inverse, {"staleness": Inverse(2.0), "optimizer": fastagg.AMSGrad(0.1)}),
    ],
)
def test_a_checkpoint_with_ones_own_part_goes_on_to_the_bit(mine: type, parts: dict[str, Any], tmp_path: Path) -> None:
    running = server(**parts)
    play(running, range(8))
    running.save(tmp_path / "s.pt")
    with pytest.raises(CheckpointError) as caught:
        fastagg.load(tmp_path / "s.pt")
    kind = next(kind for kind, part in parts.items() if type(part) is mine)
    words = f"the checkpoint needs the {kind} {mine.__name__!r}, which is not registered: call fastagg.register("
    assert str(caught.value).endswith(words + f"{mine.__name__}) before load()")
    assert "damaged" not in str(caught.value)

    assert fastagg.register(mine) is mine
    other = fastagg.load(tmp_path / "s.pt")
    assert {kind: getattr(other, kind) for kind in parts} == parts
    assert type(getattr(other, kind)) is mine
    play(running, range(8, 20))
    play(other, range(8, 20))
    assert running.version > 0 and same(running.state_dict(), other.state_dict())


def test_a_setting_the_part_does_not_have_any_more_is_named(tmp_path: Path) -> None:
    fastagg.register(Labelled)
    server(optimizer=Labelled(label="mine")).save(tmp_path / "s.pt")
    path = Labelled.__qualname__

    @dataclass(frozen=True)
    class Labelled_(fastagg.SGD):
        name_: str = "none"

    Labelled_.__name__, Labelled_.__qualname__ = "Labelled", path  # as if its module had been edited since
    fastagg.register(Labelled_)
    with pytest.raises(CheckpointError, match=r"optimizer Labelled: unknown setting 'label'"):
        fastagg.load(tmp_path / "s.pt")


def test_two_classes_under_one_name_are_refused() -> None:
    fastagg.register(Inverse)
    assert fastagg.register(Inverse) is Inverse  # the same once more

    def another(name: str, of: type) -> type:
        return dataclass(frozen=True)(type(name, (of,), {"__qualname__": f"elsewhere.{name}"}))

    for name, of in (("Inverse", fastagg.Staleness), ("Adam", fastagg.SGD), ("Buffer", fastagg.Direction)):
        with pytest.raises(ConfigError, match=rf"another \w+ '{name}', .*\.{name}: call .*elsewhere\.{name} otherwise"):
            fastagg.register(another(name, of))
    assert registry.parts("optimizer")["Adam"] is fastagg.Adam
    assert registry.parts("staleness")["Inverse"] is Inverse
    with pytest.raises(ConfigError, match=r"has the name of fastagg\.rules\.optimizers\.SGD"):  # or SGD would come back
        registry.describe(another("SGD", fastagg.SGD)())
    other_kind = another("Adam", fastagg.Staleness)  # names are a kind's own
    assert fastagg.register(other_kind) is other_kind and registry.parts("optimizer")["Adam"] is fastagg.Adam


def test_a_class_defined_again_takes_its_place() -> None:
    def define(share: float) -> type:
        @dataclass(frozen=True)
        class Cell(fastagg.Staleness):
            def weight(self, delay: int) -> float:
                return share

        return fastagg.register(Cell)

    first, second = define(0.5), define(0.25)
    assert first is not second and registry.part("staleness", {"name": "Cell"}).weight(0) == 0.25


def test_a_missing_part_is_an_error_of_its_own() -> None:
    for kind in (MissingPart, ConfigError, LookupError):
        with pytest.raises(kind, match="needs the direction 'Delayed'"):
            registry.part("direction", registry.describe(Delayed(3, note="x")))
    fastagg.register(Delayed)
    assert registry.part("direction", registry.describe(Delayed(3, note="x"))) == Delayed(3, note="x")
