"""Parts of a figure: kept over a stop, computed once, read as they were written, and removed at the end."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rlhfless.paper.parts import FigurePart, kept_parts, remove_parts


def test_a_stop_loses_the_part_that_was_running_only(tmp_path: Path) -> None:
    folder, computed, lines = tmp_path / "parts", list[int](), list[str]()

    def parts(stops_at: int) -> list[FigurePart]:
        def table(number: int) -> pd.DataFrame:
            if number == stops_at:
                raise KeyboardInterrupt
            computed.append(number)
            return pd.DataFrame({"name": ["", "None"], "value": [0.1 + number, float("nan")]})

        return [FigurePart(f"part {number}", number, lambda number=number: table(number)) for number in range(3)]

    with pytest.raises(KeyboardInterrupt):
        list(kept_parts(parts(stops_at=2), folder, lines.append))
    found = list(kept_parts(parts(stops_at=-1), folder, lines.append))
    assert computed == [0, 1, 2]
    assert [line.split(":")[0].strip() for line in lines] == ["part 0", "part 1", "part 2"]
    assert [frame["value"].iloc[0] for frame in found] == [0.1, 1.1, 2.1]
    assert found[0]["name"].iloc[1] == "None"
    assert found[0].isna().to_numpy().tolist() == [[True, False], [False, True]]
    remove_parts(folder)
    assert not folder.exists()
    remove_parts(folder)


def test_parts_of_other_inputs_have_other_files() -> None:
    names = {FigurePart("part 1", inputs, pd.DataFrame).file_name for inputs in (1, 2, "1")}
    assert len(names) == 3
    assert all(name.startswith("part-1-") for name in names)
