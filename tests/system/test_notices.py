"""Lines of progress stand on standard error, in a notebook on standard output."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rlhfless.system.notices import notice


@pytest.mark.parametrize(
    ("shell", "stream"),
    [(None, "err"), (SimpleNamespace(), "err"), (SimpleNamespace(kernel=1), "out")],
    ids=["none", "terminal", "notebook"],
)
def test_a_notice_is_not_red_in_a_notebook(
    shell: object, stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    notice("train: learner on cpu")
    said = capsys.readouterr()
    assert (said.out, said.err) == (("train: learner on cpu\n", "") if stream == "out" else ("", "train: learner on cpu\n"))
