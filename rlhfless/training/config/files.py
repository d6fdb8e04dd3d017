"""Configurations as YAML: a file with changes from the command line is read, and a configuration is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhfless.errors import reason
from rlhfless.training.config.algorithm import AlgorithmConfig
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import ALGORITHMS, Section, unknown_key
from rlhfless.training.config.train import SECTIONS, TrainConfig, merged
from solver.model.errors import as_given

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=", re.ASCII)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads YAML; ``1e-6`` is a number, as in YAML 1.2, and a key that stands twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in found:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} stands twice", key_node.start_mark)
            found.add(key if isinstance(key, str) else repr(key))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def is_override(word: str) -> bool:
    """Return whether a word of the command line is ``KEY=VALUE`` or ``SECTION.KEY=VALUE``, and no file."""
    return _OVERRIDE.match(word) is not None


def read_config(file: str | Path | None = None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration of a YAML file with changes.

    Args:
        file: may leave out any key; such a key has its default. None is a file without keys.
        overrides: of the form ``section.key=value``, with values as in YAML: ``rollout.samples_per_prompt=4``,
            ``task.rewards=[exact, 0.5*task]``. The last of several for one key counts.

    Raises:
        TrainError: the file or an override cannot be read, or see ``TrainConfig``. The message names the key.
        OSError: the file cannot be opened.
    """
    config: Mapping[str, Any] = {} if file is None else _of_file(Path(file))
    for override in overrides:
        config = merged(config, _change(override))
    try:
        return TrainConfig(**config)
    except TrainError as error:
        if file is None or overrides:  # either may have the wrong key
            raise
        raise TrainError(f"{file}: {error}") from None


def to_yaml(config: TrainConfig, *, explained: bool = False) -> str:
    """Return a configuration with all its keys as YAML, which ``read_config`` reads.

    Args:
        explained: with what each key does as a comment above it.
    """
    if not explained:
        return str(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True, width=120))
    return "\n".join(_explained(config)) + "\n"


def _of_file(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        raise TrainError(f"{path}: is a folder; give a YAML file, such as {path / 'config.yaml'}")
    if not path.exists():
        raise TrainError(f"{path}: there is no such file; give a YAML file, or keys as section.key=value")
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TrainError(f"{path}: is not valid YAML ({_problem(error)}); give lines such as 'steps: 10'") from None
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise TrainError(f"{path}: holds {as_given(given)}, not keys with values; give lines such as 'steps: 10'")
    return given


def _change(override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals:
        raise TrainError(f"{override} does not set a key of the configuration; write section.key=value, such as cluster.gpus=8")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise TrainError(f"{key} is {text}, which is not valid YAML ({_problem(error)}); put a text in quotes") from None
    section, _, name = key.rpartition(".")
    if not section:
        return {name: value}
    if section not in SECTIONS:
        raise TrainError(unknown_key(key))
    return {section: {name: value}}


def _problem(error: Exception) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem or reason(error)


def _explained(config: TrainConfig) -> Iterator[str]:
    for name in TrainConfig.model_fields:
        value = getattr(config, name)
        if not isinstance(value, Section):
            yield from _lines(config, name, "")
            continue
        yield from ("", f"{name}:")
        for key in type(value).model_fields:
            yield from _lines(value, key, "  ")


def _lines(section: Section, name: str, indent: str) -> Iterator[str]:
    text = " ".join((type(section).model_fields[name].description or "").split())
    if isinstance(section, AlgorithmConfig) and name == "name":
        text = f"Learn with this algorithm: {', '.join(sorted(ALGORITHMS))}"
    unset = re.search(r" Default: .*$", text) if getattr(section, name) is None else None
    yield f"{indent}# {text.split('. ')[0].rstrip('.')}.{unset[0] if unset else ''}".replace("``", "")
    value = yaml.safe_dump([section.to_dict()[name]], default_flow_style=True, allow_unicode=True, width=10_000)
    yield f"{indent}{name}: {value.strip()[1:-1]}"
