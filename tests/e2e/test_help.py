"""Help, versions and lists fit into 80 columns."""

from __future__ import annotations

import re

import pytest

from .helpers import call, process, works

DATA = ("fetch", "list", "describe", "convert", "append", "export")
QUERIES = ("predict", "recommend", "next", "active", "similar", "embed", "serve", "retrain")
OTHERS = (*"train search evaluate compare report reproduce audit data models demo bench version".split(), *QUERIES)
COMMANDS = [[], *([name] for name in OTHERS), *(["data", name] for name in DATA)]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command(command: list[str]) -> None:
    result = works(*command, "--help")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "Usage: cordgt" in result.out
    assert "…" not in result.out.replace("...", "")  # nothing is cut off
    options = set(re.findall(r"^│\s+(?:\*\s+)?(--[a-z-]+)", result.out, re.MULTILINE))
    undescribed = [line for line in result.out.splitlines() if re.fullmatch(r"│\s+(\*\s+)?--[a-z-]+\s+\S*\s*│", line)]
    assert options
    assert undescribed == []


def test_commands_are_shown_in_groups() -> None:
    help_text = works("--help").out
    panels = re.split(r"╭─ ", help_text)[1:]
    found = {panel.partition(" ─")[0]: re.findall(r"^│ ([a-z]+) ", panel, re.MULTILINE) for panel in panels}
    assert found["Query a trained model"] == list(QUERIES)
    assert sorted(name for names in found.values() for name in names) == sorted([*OTHERS, "upgrade"])


def test_help_shows_defaults() -> None:
    help_text = " ".join(works("train", "--help").out.split())
    for default in ("(cordgt)", "(0)", "(runs/DATA-MODEL-seedN)", "auto"):
        assert f"[default: {default}]" in help_text


@pytest.mark.parametrize("command", [[], ["data"]], ids=["cordgt", "data"])
def test_a_group_without_a_command_shows_its_help(command: list[str]) -> None:
    result = call(*command)
    assert "Usage: cordgt" in result.out + result.err


def test_commands_with_column_options() -> None:
    for command in (
        ["train"],
        ["search"],
        ["predict"],
        ["recommend"],
        ["next"],
        ["active"],
        ["embed", "serve"],
        ["data", "describe"],
        ["data", "convert"],
    ):
        help_text = works(*command, "--help").out
        assert all(
            option in help_text for option in ("--src", "--dst", "--time", "--label", "--features", "--node-features")
        )


@pytest.mark.parametrize("command", [["models"], ["data", "list"], ["version"]], ids=" ".join)
def test_lists_fit_into_80_columns(command: list[str]) -> None:
    assert max(map(len, works(*command).out.splitlines())) <= 80


def test_models_and_their_settings() -> None:
    rows = {row["model"]: row for row in works("models", "--json").json}
    assert {"cordgt", "edgebank"} <= set(rows)
    assert "fanout=20,1" in rows["cordgt"]["settings"]
    for (
        key
    ) in "fanout alpha beta hidden heads layers dropout sampling mask stpe td sd head td_unseen sd_unseen".split():
        assert f"{key}=" in rows["cordgt"]["settings"]
    for name, lr in (("tgn", 0.0001), ("tgat", 0.0001), ("ctdne", 0.01)):  # not the default of the training loop
        assert f" lr={lr}" in rows[name]["settings"]
    assert " lr=" not in rows["cordgt"]["settings"] and "ema_decay=0.999" in rows["cordgt_plus"]["settings"]
    assert works("models", "cordgt", "--json").json == [rows["cordgt"]]
    assert "Did you mean 'cordgt'" in call("models", "cordgd").err
    stderr = works("models").err
    for key in "epochs batch_size lr patience visibility negatives split mask_nodes mask_seed".split():
        assert f" {key}=" in stderr


def test_known_datasets() -> None:
    rows = {row["name"]: row for row in works("data", "list", "--json").json}
    assert rows["wikipedia"] == {"name": "wikipedia", "nodes": 9227, "events": 157474, "found": None}
    assert rows["food-twin"] == {"name": "food-twin", "nodes": 673858, "events": 2708688, "found": "generated"}
    assert "157,474" in works("data", "list").out


def test_version_in_its_own_process() -> None:
    out, err = process("version").communicate(timeout=300)
    assert re.search(r"cordgt\s+\d+\.\d+", out)
    assert err == ""


def test_version_as_an_option() -> None:
    assert re.fullmatch(r"cordgt \d+\.\d+\S*\n", works("--version").out)
    assert "--version" in works("--help").out


def test_an_unknown_command() -> None:
    result = call("trian")
    assert result.code == 2
    assert "train" in result.err
