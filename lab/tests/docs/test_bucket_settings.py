"""The page about settings names every one of them."""

from dataclasses import fields
from pathlib import Path

from dcpstream.model import BucketSettings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "bucket-settings.md"


def test_every_setting_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert [field.name for field in fields(BucketSettings) if f"`{field.name}`" not in text] == []
