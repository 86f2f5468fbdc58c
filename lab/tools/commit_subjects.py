"""Check that commit subjects have at most 72 characters, so that logs and e-mail show them whole.

    python lab/tools/commit_subjects.py                 commits since the rule began
    python lab/tools/commit_subjects.py --message FILE  one message, as Git hands it to the hook commit-msg

Without Git's history (an unpacked source archive) there is nothing to check. In a shallow clone that does not reach
back to the base, all commits are newer than it and are checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

LONGEST = 72

BASE = "54d3a13ed3289f324457639c2f34fb525d5a6e51"
"""The last commit before the rule."""

ROOT = Path(__file__).resolve().parents[2]


def subject_of(message: str) -> str:
    """The first line of a message that is neither empty nor a comment."""
    lines = (line.rstrip() for line in message.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def new_subjects(root: Path, base: str = BASE) -> list[str] | None:
    """The subjects of the commits after `base`; None if `root` has no history."""
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return None
    if _git(root, "merge-base", "--is-ancestor", base, "HEAD") is not None:
        commits = f"{base}..HEAD"
    elif _git(root, "rev-parse", "--is-shallow-repository") == "true":
        commits = "HEAD"
    else:
        return None
    subjects = _git(root, "log", "--no-merges", "--format=%s", commits)
    return subjects.splitlines() if subjects else []


def _git(root: Path, *arguments: str) -> str | None:
    """The output of a git command; None if it fails or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, encoding="utf-8", check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check, print what is too long, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--message", type=Path, metavar="FILE")
    message = parser.parse_args(arguments).message
    subjects = [subject_of(message.read_text("utf-8"))] if message else new_subjects(root)
    if subjects is None:
        print("commit subjects: no history here that could be checked")
        return 0
    too_long = [subject for subject in subjects if len(subject) > LONGEST]
    if too_long:
        print(f"A commit subject has at most {LONGEST} characters; the body says the rest:")
        print("\n".join(f"  {len(subject)}: {subject}" for subject in too_long))
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
