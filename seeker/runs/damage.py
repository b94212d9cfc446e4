"""Whether what a commit names is on the disk as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from seeker.errors import RunDirectoryError
from seeker.runs import disk
from seeker.runs.checkpoints import restore_points
from seeker.runs.commits import Latest, manifest_path, read_manifest
from seeker.runs.directory import RunDirectory
from seeker.runs.files import FileRef, Json, read_file, sha256_hex


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or not what was written.

    Example: ``Damage("steps/000007/batch.bin", "damaged, sha256 is 5f2c…, expected 9f86…")``.
    """

    path: str
    what: str


@dataclass(slots=True)
class Inspector:
    """Looks at commits of one run; a file is read once."""

    run: RunDirectory
    _seen: dict[str, Damage | None] = field(default_factory=dict[str, "Damage | None"])
    _manifests: dict[int, Json | Damage] = field(default_factory=dict[int, "Json | Damage"])

    def damage_of(self, version: int) -> list[Damage]:
        """What stands against going on from the commit of `version` (above 0); empty when nothing does.

        Its own files must be whole, and so must the batches from which a lost trainer would rebuild it.
        """
        manifest = self.manifest(version - 1)
        if isinstance(manifest, Damage):
            return [manifest]
        return [damage for damage in (*self._own(manifest), *self._needed(version)) if damage is not None]

    def damaged_manifests(self, num_steps: int) -> list[Damage]:
        """Manifests of the first steps that are damaged, missing, or not the one that the next step followed."""
        found: list[Damage] = []
        for step in range(num_steps):
            manifest, following = self.manifest(step), self.manifest(step + 1) if step + 1 < num_steps else None
            if isinstance(manifest, Damage):
                found.append(manifest)
            elif isinstance(following, dict) and not self._precedes(following):
                found.append(Damage(manifest_path(self.run, step), f"not the one that step {step + 1} followed"))
        return found

    def _precedes(self, following: Json) -> bool:
        previous: Json = following.get("previous", {})
        told: Json | None = previous.get("manifest")
        return told is None or self.file(FileRef.from_json(told)) is None

    def commit_of(self, version: int) -> Latest:
        """The commit of `version` (above 0), from a manifest that is whole."""
        step = version - 1
        path = manifest_path(self.run, step)
        ref = FileRef(path, sha256_hex(disk.read(self.run.root / path)))
        policy = FileRef.from_json(read_manifest(self.run, step)["policy"])
        return Latest(step, version, self.run.lineage, policy, ref)

    def manifest(self, step: int) -> Json | Damage:
        if step not in self._manifests:
            self._manifests[step] = self._read_manifest(step)
        return self._manifests[step]

    def file(self, ref: FileRef) -> Damage | None:
        """What is wrong with a referenced file; None when it is whole."""
        if ref.path not in self._seen:
            self._seen[ref.path] = self._look(ref)
        return self._seen[ref.path]

    def _own(self, manifest: Json) -> Iterator[Damage | None]:
        yield self.file(FileRef.from_json(manifest["policy"]))
        for ref in manifest["rollouts"]:
            yield self.file(FileRef.from_json(ref))
        yield from (self._object(told) for told in manifest.get("objects", ()))

    def _needed(self, version: int) -> Iterator[Damage | None]:
        """The batches between the newest full state and the commit."""
        points = restore_points(self.run, version)
        if not points:
            yield Damage("checkpoints", f"missing, and nothing below version {self.run.floor} can be replayed")
            return
        for step in range(points[0], version):
            manifest = self.manifest(step)
            if isinstance(manifest, Damage):
                yield manifest
            elif manifest["batch"]:
                yield self.file(FileRef.from_json(manifest["batch"]))

    def _read_manifest(self, step: int) -> Json | Damage:
        try:
            return read_manifest(self.run, step)
        except RunDirectoryError as error:
            return Damage(manifest_path(self.run, step), _reason(error))

    def _look(self, ref: FileRef) -> Damage | None:
        try:
            read_file(self.run.root, ref)
        except RunDirectoryError as error:
            return Damage(ref.path, _reason(error))
        return None

    def _object(self, told: Json) -> Damage | None:
        path = self.run.root / told["path"]
        if not path.is_file():
            return Damage(told["path"], "missing")
        found = xxhash.xxh3_128_hexdigest(disk.read(path))
        if found != told["xxh3"]:
            return Damage(told["path"], f"damaged, xxh3 is {found[:12]}, expected {told['xxh3'][:12]}")
        return None


def _reason(error: RunDirectoryError) -> str:
    """``damaged, sha256 is 5f2c…`` of ``/runs/demo/steps/000007/batch.bin: damaged, sha256 is 5f2c…; …``."""
    return str(error).partition(": ")[2].partition(";")[0]
