"""Files of kept inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fuzz import corpus


def test_inputs_come_back_in_order_with_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    assert corpus.load("frames") == {}
    corpus.save("frames", {b"long one": "", b"": "", b"#\n": "", b"\xff\0 found": "it broke: a # in a text"})
    assert list(corpus.load("frames").items()) == [
        (b"\xff\0 found", "it broke: a # in a text"),
        (b"", ""),
        (b"#\n", ""),
        (b"long one", ""),
    ]
    assert corpus.path_of("frames").read_text().startswith("# Inputs of the fuzz target frames")


def test_a_damaged_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    corpus.path_of("frames").write_text("AAA\n")
    with pytest.raises(ValueError, match="padding"):
        corpus.load("frames")


def test_a_folder_for_the_search(tmp_path: Path) -> None:
    corpus.fill(tmp_path / "new", [b"a", b"b"])
    assert sorted(path.read_bytes() for path in (tmp_path / "new").iterdir()) == [b"a", b"b"]
