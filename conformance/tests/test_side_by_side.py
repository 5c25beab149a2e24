"""Work done side by side is answered in order, and no trouble in it goes unnoticed."""

import multiprocessing
import os
import subprocess

import pytest

from dnncanon.conformance.side_by_side import ProcessLost, side_by_side


def test_answers_come_in_the_order_of_the_tasks() -> None:
    heard: list[None] = []
    tasks = ["sleep 1; echo late", "echo early", "echo last"]
    answers = side_by_side(subprocess.getoutput, tasks, 2, lambda: heard.append(None))
    assert list(answers) == ["late", "early", "last"]
    assert len(heard) == 3


def test_without_tasks_there_are_no_answers() -> None:
    assert list(side_by_side(int, [], 2)) == []


def test_what_the_work_raises_is_raised_with_its_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        list(side_by_side(int, ["1", "one", "2"], 2))
    assert "side_by_side.py" in caught.value.__notes__[0]


def test_a_process_that_ends_is_an_error_and_not_waited_for() -> None:
    with pytest.raises(ProcessLost, match="exit code 3"):
        list(side_by_side(os._exit, [3, 3], 1))


def test_a_closed_iterator_leaves_no_process() -> None:
    before = set(multiprocessing.active_children())
    answers = side_by_side(subprocess.getoutput, ["echo one", "sleep 600", "sleep 600"], 3)
    assert next(answers) == "one"
    answers.close()
    assert set(multiprocessing.active_children()) == before
