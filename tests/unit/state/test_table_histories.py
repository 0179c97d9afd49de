"""Long random histories of one table against a plain dict."""

import pytest

from state_kit import SCHEMAS, Dice, Rig, look_up, wander


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_is_what_the_model_says(tmp_path, name, seed):
    rig = Rig(tmp_path / "w", SCHEMAS[name])
    dice = Dice(f"{name} {seed}", SCHEMAS[name])
    wander(rig, dice, 60)
    look_up(rig, dice)
