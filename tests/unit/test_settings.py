"""Settings: read from values, text or TOML, written as TOML; errors suggest the nearest key."""

from __future__ import annotations

import dataclasses
import math
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import SettingError
from cordgt.history.context import SAMPLINGS
from cordgt.models import MODELS
from cordgt.models.cordgt import CordgtSettings
from cordgt.tasks.protocol import NEGATIVES, POOLS, VISIBILITIES, Protocol
from cordgt.tasks.split import SPLIT_RULES
from cordgt.training.settings import (
    Settings,
    TrainingSettings,
    check_all_used,
    from_toml,
    known_keys,
    make_settings,
    parse_assignments,
    parse_toml,
    read_config,
)

# --- round trip ---

share = st.floats(0.01, 0.45)
positive = st.integers(1, 10**6)
protocols = st.builds(
    Protocol,
    visibility=st.sampled_from(VISIBILITIES),
    split=st.sampled_from(SPLIT_RULES),
    train_ratio=share,
    val_ratio=share,
    mask_nodes=st.floats(0, 1, exclude_max=True),
    mask_seed=st.integers(0, 2**63 - 1),
    negatives=st.sampled_from(list(NEGATIVES)),
    pool=st.sampled_from(POOLS),
    eval_batch_size=positive,
    eval_seed=st.integers(0, 2**31),
)
trainings = st.builds(
    TrainingSettings,
    epochs=positive,
    batch_size=positive,
    lr=st.floats(1e-300, 1e300),
    patience=positive,
    min_delta=st.floats(0, 10),
    precision=st.sampled_from(("tf32", "fp32")),
)
even = st.integers(1, 200).map(lambda n: 2 * n)
amount = st.floats(0, 1e300)
cordgts = st.builds(
    CordgtSettings,
    fanout=st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple),
    sampling=st.sampled_from(SAMPLINGS),
    alpha=amount,
    beta=amount,
    td_unseen=amount,
    sd_unseen=st.integers(1, 1000),
    hidden=positive,
    heads=positive,
    layers=positive,
    dropout=st.floats(0, 1, exclude_max=True),
    mask=st.booleans(),
    stpe=st.sampled_from(("c", "u")),
    td=st.booleans(),
    sd=st.booleans(),
    head=st.sampled_from(("mlp", "linear")),
    td_dim=even,
    sd_dim=even,
)
whole_settings = st.builds(
    Settings,
    model=st.just("cordgt"),
    seed=st.integers(-(2**63), 2**63 - 1),
    protocol=protocols,
    training=trainings,
    model_settings=cordgts,
    unused=st.just(()),
)


@settings(max_examples=50)
@given(made=whole_settings)
def test_toml_round_trip(made: Settings) -> None:
    assert from_toml(made.to_toml(), "config.toml") == made


@given(made=whole_settings)
def test_every_value_parses_from_its_text(made: Settings) -> None:
    """What a person types after --set says the same as the value."""
    tables = (made.protocol, made.training, made.model_settings)
    given_text = {}
    for table in tables:
        for key, value in vars(table).items():
            given_text[key] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert make_settings("cordgt", given_text, seed=made.seed) == made


@pytest.mark.parametrize("model", MODELS)
def test_defaults_of_every_model_round_trip(model: str) -> None:
    made = make_settings(model, {})
    assert from_toml(made.to_toml(), "config.toml") == made
    assert made.model == model and made.seed == 0 and made.unused == ()


def test_default_values() -> None:
    made = make_settings("cordgt", {})
    assert made == Settings()
    assert (made.training.epochs, made.training.batch_size, made.training.lr, made.training.patience) == (
        50,
        100,
        0.001,
        3,
    )
    own = made.model_settings
    assert (own.fanout, own.alpha, own.beta, own.hidden, own.heads, own.layers) == ((20, 1), 1.0, 10.0, 64, 6, 2)


def test_every_documented_key_is_known() -> None:
    promised = (
        "epochs batch_size lr patience fanout alpha beta hidden heads layers dropout sampling visibility mask stpe td "
        "sd head td_unseen sd_unseen negatives split mask_nodes mask_seed"
    )
    assert set(promised.split()) <= set(known_keys())
    assert len(known_keys()) == len(set(known_keys()))


def test_every_key_is_in_one_table() -> None:
    """A flat name means one thing: the tables of a model, the protocol and the training share none."""
    for kind in MODELS.values():
        names = [f.name for table in (Protocol, TrainingSettings, kind.settings) for f in dataclasses.fields(table)]
        assert len(names) == len(set(names))


# --- what a value may be written as ---


@pytest.mark.parametrize(
    ("written", "fanout"),
    [
        ("32,1", (32, 1)),
        (" 32 , 1 ", (32, 1)),
        ("7", (7,)),
        (7, (7,)),
        ((3, 2, 1), (3, 2, 1)),
        ([3, 2], (3, 2)),
        ([4.0], (4,)),
    ],
)
def test_fanout(written: Any, fanout: tuple[int, ...]) -> None:
    assert make_settings("cordgt", {"fanout": written}).model_settings.fanout == fanout


@pytest.mark.parametrize("written", ["", ",", "3,", "a", "3;1", "3.5", 3.5, [3.5], True, [True], None, "0", "-1,2", []])
def test_bad_fanout(written: Any) -> None:
    with pytest.raises(SettingError, match="fanout="):
        make_settings("cordgt", {"fanout": written})


@pytest.mark.parametrize(("word", "value"), [("true", 1), ("on", 1), ("yes", 1), ("1", 1), (True, 1), (1, 1)])
@pytest.mark.parametrize("shout", [False, True])
def test_true_words(word: Any, value: int, shout: bool) -> None:
    word = word.upper() if shout and isinstance(word, str) else word
    assert make_settings("cordgt", {"mask": word}).model_settings.mask is True


@pytest.mark.parametrize("word", ["false", "off", "no", "0", False, 0, "False", "OFF"])
def test_false_words(word: Any) -> None:
    assert make_settings("cordgt", {"td": word}).model_settings.td is False


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mask", "maybe", "true or false"),
        ("mask", "", "true or false"),
        ("mask", 2, "true or false"),
        ("epochs", "many", "a whole number"),
        ("epochs", "1.5", "a whole number"),
        ("epochs", 1.5, "a whole number"),
        ("epochs", True, "a whole number"),
        ("epochs", None, "a whole number"),
        ("epochs", math.inf, "a whole number"),
        ("epochs", math.nan, "a whole number"),
        ("lr", "fast", "a number"),
        ("lr", True, "a number"),
        ("lr", None, "a number"),
        ("lr", [1], "a number"),
        pytest.param("lr", 10**400, "a number", id="lr-huge"),
        ("visibility", 0.5, "a word"),
        ("visibility", None, "a word"),
        ("fanout", "wide", "whole numbers, as in 32,1"),
    ],
)
def test_wrong_type_is_an_error(key: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_settings("cordgt", {key: value})
    assert str(caught.value) == f"{key}={value}: expected {expected}."


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("epochs", -3),
        ("batch_size", 0),
        ("patience", 0),
        ("lr", 0),
        ("lr", -1),
        ("lr", "inf"),
        ("lr", "nan"),
        ("min_delta", -1e-9),
        ("min_delta", "nan"),
        ("precision", "fp16"),
        ("visibility", "everything"),
        ("hidden", 0),
        ("dropout", 1),
        ("td_unseen", "inf"),
    ],
)
def test_value_out_of_range_is_an_error(key: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{key}="):
        make_settings("cordgt", {key: value})


def test_integral_float_is_an_integer() -> None:
    assert make_settings("cordgt", {"epochs": 3.0}).training.epochs == 3
    assert make_settings("cordgt", {"alpha": 2}).model_settings.alpha == 2.0
    assert isinstance(make_settings("cordgt", {"alpha": 2}).model_settings.alpha, float)


# --- unknown, unused ---


@pytest.mark.parametrize(
    ("key", "meant"), [("fan_out", "fanout"), ("epoch", "epochs"), ("Alpha", "alpha"), ("batchsize", "batch_size")]
)
def test_unknown_key_suggests_the_nearest(key: str, meant: str) -> None:
    with pytest.raises(SettingError, match=f"no setting '{key}'. Did you mean '{meant}'"):
        make_settings("cordgt", {key: 1})


def test_unknown_key_without_a_similar_one() -> None:
    with pytest.raises(SettingError) as caught:
        make_settings("cordgt", {"xyzzy": 1}, where="my.toml")
    assert str(caught.value) == "my.toml: there is no setting 'xyzzy'."


def test_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"no model 'cordgtt'\. Did you mean 'cordgt'"):
        make_settings("cordgtt", {})


def test_keys_of_other_models_are_listed_as_unused() -> None:
    made = make_settings("edgebank", {"alpha": 3, "epochs": 2, "fanout": "not read"})
    assert made.unused == ("alpha", "epochs", "fanout")  # a rule trains for no epochs, and that is said
    assert made.training.epochs == 2
    assert made == make_settings("edgebank", {"epochs": 2})  # they are no part of what the run is


def test_a_given_setting_that_the_model_does_not_read_is_an_error() -> None:
    """The error names who reads it, and what this model reads. Keys of a preset may stay unread."""
    made = make_settings("tgn", {"fanout": "32,1", "alpha": 3, "memory_dim": 6})
    check_all_used(made, ["memory_dim"])
    with pytest.raises(SettingError) as caught:
        check_all_used(made, ["fanout", "memory_dim"], "my.toml")
    assert str(caught.value) == (
        "my.toml: tgn does not read fanout (read by cordgt, cordgt_plus, cordgt_small). Remove it, or choose another "
        "model. Settings of tgn: memory_dim, time_dim, block, num_neighbors, layers, heads, dropout, learn_time."
    )
    with pytest.raises(SettingError, match=r"epochs \(read by every model that is trained\).*: window\."):
        check_all_used(make_settings("popularity", {"epochs": 3}), ["epochs"])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_may_be_given_all_that_it_declares(model: str) -> None:
    made = make_settings(model, {})
    tables = (made.protocol, made.model_settings, *([made.training] if MODELS[model].network.is_trainable else []))
    given_keys = {key: value for table in tables for key, value in vars(table).items()}
    check_all_used(make_settings(model, given_keys), given_keys)


def test_mrr_as_monitor_sets_ranking() -> None:
    made = make_settings("counts", {"monitor": "mrr"})
    assert made.protocol.ranking == "100" and "ranking=100" in made.notes[0]
    assert make_settings("counts", {"monitor": "mrr", "ranking": "all"}).notes == ()
    assert make_settings("counts", {"monitor": "ap"}).protocol.ranking == "none"
    assert from_toml(made.to_toml(), "config.toml") == made
    with pytest.raises(SettingError, match=r"ranking=none measures none.*--set ranking=100"):
        make_settings("counts", {"monitor": "mrr", "ranking": "none"})


@pytest.mark.parametrize(
    "seed",
    [
        "1",
        1.0,
        True,
        None,
        2**64,
    ],
)
def test_seed_must_be_an_integer(seed: Any) -> None:
    with pytest.raises(SettingError, match="seed="):
        make_settings("cordgt", {}, seed=seed)


# --- files and assignments ---


def test_assignments() -> None:
    assert parse_assignments(["fanout=32,1", " lr = 0.1 ", "a=b=c", "x="]) == {
        "fanout": "32,1",
        "lr": "0.1",
        "a": "b=c",
        "x": "",
    }


@pytest.mark.parametrize("text", ["epochs", "=3", " =3", ""])
def test_bad_assignment(text: str) -> None:
    with pytest.raises(SettingError, match="KEY=VALUE"):
        parse_assignments([text])


def test_config_file_may_set_any_part(tmp_path: Path) -> None:
    """Flat, or in tables; with or without the model and the seed."""
    path = tmp_path / "my.toml"
    path.write_text('model = "edgebank"\nepochs = 3\n[protocol]\nvisibility = "paper"\n', encoding="utf-8")
    found = read_config(path)
    assert found.model == "edgebank" and found.seed is None
    assert found.keys == {"epochs": 3, "visibility": "paper"}
    path.write_text("", encoding="utf-8")
    assert read_config(path) == (None, None, {}, False)


def test_config_of_a_run_is_a_valid_config_file() -> None:
    text = "format = 2\n" + Settings().to_toml() + '\n[data]\nname = "x"\n'
    assert make_settings("cordgt", parse_toml(text, "config.toml").keys) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = ", "my.toml is not valid TOML"),
        ("epochs = 1\nepochs = 2", "my.toml is not valid TOML"),
        ("format = 99", "my.toml has format 99, but this version reads formats 1 to"),
        ("format = 'new'", "my.toml has format new"),
        ("format = true", "my.toml has format True"),
        ("[protocl]\nsplit = 'time'", r"no table \[protocl\]. Did you mean 'protocol'"),
    ],
)
def test_invalid_config_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match=message):
        read_config(path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(SettingError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'")
    with pytest.raises(SettingError, match="cannot be read"):
        read_config(tmp_path / "latin.toml")


def test_every_setting_has_a_parseable_type() -> None:
    """A new setting of another type would need a way of being written."""
    for table in (Protocol, TrainingSettings, *(kind.settings for kind in MODELS.values())):
        for name, kind in typing.get_type_hints(table).items():
            assert kind in (bool, int, float, str) or typing.get_origin(kind) is tuple, name
