"""A recipe: an engine, a workload, a fault and the truth about it, as one TOML file."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tokenlag.errors import InputError
from tokenlag.simulate.config import EngineConfig, StepChange, StepModel
from tokenlag.simulate.delivery import DeliveryConfig
from tokenlag.simulate.fleet import FleetConfig
from tokenlag.simulate.frontend import FrontendConfig
from tokenlag.simulate.gateway import GatewayConfig
from tokenlag.simulate.handoff import HandoffConfig
from tokenlag.simulate.speculation import SpeculationConfig
from tokenlag.simulate.steptime import check_effects
from tokenlag.simulate.workload import Edge

_T = TypeVar("_T")

DEFAULT_DEVICE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Truth:
    """What a diagnosis of the recipe must and must not say.

    Attributes:
        healthy: nothing is wrong; then `cause` is None.
        cause: the cause's id, as in the closed list of causes.
        must_not: ids that would be a wrong first guess.
        symptom: `ttft`, `itl`, `e2e` or `errors`.
        limit: what binds, for queueing: `slots`, `tokens`, `kv`, `capacity`.
        mode: `mixed` or `prefill-first`, where it matters.
        culprit: name of the workload source that does the harm.
        change_s: when the run changes, in seconds from its start, for two-period recipes.
        slo: objective to judge by, as the command line takes it.
        notes: consequences that may be named beside the cause.
    """

    healthy: bool = False
    cause: str | None = None
    must_not: tuple[str, ...] = ()
    symptom: str | None = None
    limit: str | None = None
    mode: str | None = None
    culprit: str | None = None
    change_s: float | None = None
    slo: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine stops at `at_s` for `down_s`; its requests fail, or clients send them again."""

    at_s: float
    down_s: float = 5.0
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A recipe after one variant's overrides, ready to run."""

    recipe: str
    name: str
    shows: str
    seed: int
    engine: EngineConfig
    step: StepModel
    edge: Edge
    workload: Mapping[str, Mapping[str, Any]]
    truth: Truth
    measure_s: tuple[float, float] | None
    horizon_s: float
    restart: Restart | None
    fleet: FleetConfig | None
    frontend: FrontendConfig | None
    delivery: DeliveryConfig | None
    speculation: SpeculationConfig | None
    handoff: HandoffConfig | None
    gateway: GatewayConfig | None
    resource: Mapping[str, Any]
    model: str
    operation: str
    expected: Mapping[str, Any]
    reseed: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe file: the fault as it stands, and variants that override parts of it.

    Attributes:
        name: its name, such as `S01`.
        shows: one line on what it shows.
        seed: the seed with which its numbers were stated.
        variants: names; `fault` is always one of them, or `healthy` for recipes without a fault.
    """

    name: str
    shows: str
    seed: int
    path: Path
    table: Mapping[str, Any] = field(repr=False)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of all variants, the recipe as it stands first."""
        return (self.base, *self.table.get("variants", {}))

    @property
    def base(self) -> str:
        """Name of the recipe as it stands, without overrides."""
        return str(self.table.get("base", "fault"))

    @property
    def control(self) -> str | None:
        """Name of the first variant that is marked `control = true`, if any."""
        for name, table in self.table.get("variants", {}).items():
            if table.get("control"):
                return str(name)
        return None

    def variant(self, name: str | None = None) -> Variant:
        """Return a variant by name, or the recipe as it stands.

        Raises:
            InputError: no such variant, or a table that is not one.
        """
        chosen = name or self.base
        table = copy.deepcopy(dict(self.table))
        variants = table.pop("variants", {})
        if chosen != self.base:
            if chosen not in variants:
                raise InputError(
                    f"no variant {chosen!r}",
                    place=self.name,
                    hint=f"there are {', '.join(self.variants)}",
                )
            override = variants[chosen]
            if override.get("control"):
                # A control shares the workload, not the verdict.
                table["truth"] = {"healthy": True, "must_not": []}
            table.pop("expected", None)
            _merge(table, override)
        return self._build(chosen, table)

    def _build(self, name: str, table: dict[str, Any]) -> Variant:
        place = f"{self.path.name} [{name}]"
        step = dict(_section(table, "step", place))
        step["changes"] = tuple(
            _typed(StepChange, change, f"{place} step.changes")
            for change in step.get("changes", ())
        )
        step["effects"] = tuple(step.get("effects", ()))
        model = _typed(StepModel, step, f"{place} step")
        check_effects(model.effects, model)
        measure = table.get("measure_s")
        restart = table.get("restart")
        return Variant(
            recipe=self.name,
            name=name,
            shows=str(table.get("shows", self.shows)),
            seed=self.seed,
            engine=_typed(EngineConfig, _section(table, "engine", place), f"{place} engine"),
            step=model,
            edge=_typed(Edge, _tuples(table.get("edge", {})), f"{place} edge"),
            workload=_section(table, "workload", place),
            truth=_typed(Truth, _tuples(table.get("truth", {})), f"{place} truth"),
            measure_s=(float(measure[0]), float(measure[1])) if measure else None,
            horizon_s=float(table.get("horizon_s", float("inf"))),
            restart=_typed(Restart, restart, f"{place} restart") if restart else None,
            fleet=_optional(FleetConfig, table, "fleet", place),
            frontend=_optional(FrontendConfig, table, "frontend", place),
            delivery=_optional(DeliveryConfig, table, "delivery", place),
            speculation=_optional(SpeculationConfig, table, "speculation", place),
            handoff=_optional(HandoffConfig, table, "handoff", place),
            gateway=_optional(GatewayConfig, table, "gateway", place),
            resource=table.get("resource", {}),
            model=str(table.get("model", "sim-8b")),
            operation=str(table.get("operation", "chat")),
            expected=table.get("expected", {}),
            reseed=table.get("reseed", {}),
        )


def load_recipe(path_or_name: str | Path) -> Recipe:
    """Return a recipe by path, or by name from the recipes beside this package or the checkout.

    Raises:
        InputError: no such recipe, or not TOML.
    """
    path = _find(path_or_name)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", place=str(path)) from None
    for key in ("name", "shows", "seed"):
        if key not in table:
            raise InputError(f"key {key!r} is missing", place=str(path))
    return Recipe(
        name=str(table["name"]),
        shows=str(table["shows"]),
        seed=int(table["seed"]),
        path=path,
        table=table,
    )


def recipe_folders() -> list[Path]:
    """Return where recipes are looked for by name: in the package, then in the checkout."""
    here = Path(__file__).resolve().parent
    checkout = here.parents[2] / "fixtures" / "recipes"
    return [folder for folder in (here / "recipes", checkout) if folder.is_dir()]


def recipe_names() -> list[str]:
    """Return the names of all recipes that can be loaded by name."""
    return sorted({path.stem for folder in recipe_folders() for path in folder.glob("*.toml")})


def _find(path_or_name: str | Path) -> Path:
    path = Path(path_or_name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise InputError("no such recipe", place=str(path))
        return path
    for folder in recipe_folders():
        candidate = folder / f"{path_or_name}.toml"
        if candidate.is_file():
            return candidate
    raise InputError(
        f"no recipe {str(path_or_name)!r}", hint=f"there are {', '.join(recipe_names())}"
    )


def _section(table: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    section = table.get(key)
    if not isinstance(section, dict):
        raise InputError(f"table [{key}] is missing", place=place)
    return section


def _typed(kind: type[_T], table: Mapping[str, Any], place: str) -> _T:
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - known)
    if unknown:
        raise InputError(f"unknown key {unknown[0]!r}", place=place)
    try:
        return kind(**table)
    except TypeError as error:
        raise InputError(str(error), place=place) from None


def _optional(kind: type[_T], table: Mapping[str, Any], key: str, place: str) -> _T | None:
    section = table.get(key)
    if section is None or section.get("off"):
        return None
    return _typed(kind, _tuples(section), f"{place} {key}")


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}


def _merge(table: dict[str, Any], override: Mapping[str, Any]) -> None:
    for key, value in override.items():
        if key == "control":
            continue
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value
