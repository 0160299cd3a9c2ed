"""Several runs under one name (`--replace`): NAME.1, NAME.2, … are run folders, and NAME is a link to the latest.

A new run is trained in the next folder. The link changes in one step when the run is complete, so a program that opens
NAME gets a complete run, the former or the new one. `follow_link` fixes which one, for everything that is read later.

Numbers only grow, so a folder's name always means the same run. Unfinished runs are deleted when the next one starts,
unless that one resumes them.

NAME may be set back to an earlier run, so the run before the new one is not always the former run: the one that NAME
was a link to. A new run never deletes the former run.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from cordgt.errors import RunError
from cordgt.files import file_lock, is_regular_folder, sync_folder
from cordgt.training.output_folder import is_leftover
from cordgt.training.run_folder import RunFolder

DEFAULT_KEEP = 7  # former runs


@dataclass(frozen=True)
class RunVersions:
    """The runs under the name ``path``."""

    path: Path

    def start(self, *, resume: bool) -> tuple[Path, list[Path]]:
        """Return the folder for the next run, and the folders of unfinished runs that were deleted.

        ``resume``: the folder of the latest run, if it was not published yet. RunError if the name is taken by anything
        but a finished run or our link, or if another process is training under this name.
        """
        self._check_name()
        self._remove_trash()
        versions, current = self._versions(), self._current_number() or 0
        latest = max(versions, default=0)
        if resume and latest > current and not (self._is_plain_folder and latest - 1 in versions):
            return versions[latest], []
        if not current and not self.path.exists():
            self._publish_latest_finished(versions)  # after a kill between two steps of `publish`
        unfinished = [folder for folder in versions.values() if not RunFolder(folder).is_finished]
        for folder in unfinished:
            self._delete(folder)
        n = max((k for k, folder in versions.items() if folder not in unfinished), default=0)
        return self._folder(n + (2 if self._is_plain_folder else 1)), unfinished

    def publish(self, folder: Path, keep: int, former: Path) -> None:
        """Make the name a link to a finished run, and keep ``keep`` runs before it: ``former``, then the latest.

        ``former``: what `follow_link` returned when the training started. If the name was set to another run since,
        that one is kept too.
        """
        number = self._number(folder.name)
        kept = {self._number(former.name), self._current_number()}
        try:
            if self._is_plain_folder:  # made without --replace: it becomes the version before
                os.rename(self.path, self._folder(number - 1))
            self._set_link(folder)
        except OSError as error:
            raise RunError(
                f"The run is finished in {folder}, but {self.path} cannot be replaced: {error.strerror or error}. "
                "Fix this, then use --resume."
            ) from None
        finished = [k for k, other in self._versions().items() if k < number and RunFolder(other).is_finished]
        others = sorted((k for k in finished if k not in kept), reverse=True)
        for k in others[max(0, keep - (len(finished) - len(others))) :]:
            self._delete(self._folder(k))

    @property
    def _is_plain_folder(self) -> bool:
        return is_regular_folder(self.path)

    def _check_name(self) -> None:
        """Raise RunError if the name is not free, not our link, and not a finished run."""
        if self.path.is_symlink():
            if self._current_number() is None:
                raise RunError(
                    f"{self.path} is a link to {os.readlink(self.path)}, not to a run of --replace. Choose another "
                    "name with --out."
                )
        elif self.path.is_file():
            raise RunError(f"{self.path} is a file, but --out must name a folder.")
        elif self._is_plain_folder and not RunFolder(self.path).is_finished:
            raise RunError(
                f"{self.path} is not a finished run, so --replace does not replace it. Move it, or choose another "
                "name with --out."
            )

    def _folder(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _number(self, name: str) -> int:
        """Return the number in the name of a version; 0 if it is not one."""
        match = re.fullmatch(rf"{re.escape(self.path.name)}\.([1-9]\d{{0,8}})", name)
        return int(match[1]) if match else 0

    def _current_number(self) -> int | None:
        """Return the number of the version that the link names; None if there is no such link."""
        return self._number(os.readlink(self.path)) or None if self.path.is_symlink() else None

    def _versions(self) -> dict[int, Path]:
        """Return all version folders by number. RunError if one of the names is taken by something else."""
        if not self.path.parent.is_dir():
            return {}
        found = {self._number(other.name): other for other in self.path.parent.iterdir() if self._number(other.name)}
        for folder in found.values():
            if not is_regular_folder(folder) or not _looks_like_a_run(folder):
                raise RunError(f"{folder} is not a run, but --replace needs this name. Move it.")
        return found

    def _publish_latest_finished(self, versions: dict[int, Path]) -> None:
        finished = [k for k, folder in versions.items() if RunFolder(folder).is_finished]
        if finished:
            self._set_link(versions[max(finished)])

    def _set_link(self, folder: Path) -> None:
        """Replace the link in one step."""
        new = self.path.with_name(f".{self.path.name}.link")
        new.unlink(missing_ok=True)
        os.symlink(folder.name, new)
        os.replace(new, self.path)
        sync_folder(self.path.parent)

    def _delete(self, folder: Path) -> None:
        """Delete a version: rename it first, so that a kill leaves no part of a run under its name."""
        busy = RunError(f"Another process is training in {folder}. Let it finish, or choose another name with --out.")
        with file_lock(folder, busy):
            trash = folder.with_name(f".{folder.name}.deleted")
            os.rename(folder, trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _remove_trash(self) -> None:
        if not self.path.parent.is_dir():
            return
        for trash in self.path.parent.iterdir():
            name = trash.name
            if name.startswith(".") and name.endswith(".deleted") and self._number(name[1 : -len(".deleted")]):
                shutil.rmtree(trash, ignore_errors=True)


def _looks_like_a_run(folder: Path) -> bool:
    """Return whether a folder is empty or holds a run, several runs, or the first files of one."""
    names = [child.name for child in folder.iterdir()]
    is_run = any(name in ("config.toml", "metrics.json") or is_leftover(name) for name in names)
    return not names or is_run or any(folder.glob("*/config.toml"))
