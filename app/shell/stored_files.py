"""Files that Streamlit holds in memory: downloads under secret names, uploads within a bound.

Streamlit names a download by a fast hash of its content, above 1 MiB of three samples of it. Two
files that differ elsewhere then share a name, and the first one is served for both: a masked export
would be answered with an unmasked one. And whoever guesses a content learns from its name whether
somebody has it. Here the name is a keyed hash of the whole content.

Streamlit accepts an upload for any widget, whether a page asks for one or not, and keeps it while
the session lasts.
"""

from __future__ import annotations

import hashlib
import secrets

from starlette.exceptions import HTTPException
from streamlit.runtime import memory_media_file_storage, memory_uploaded_file_manager
from streamlit.runtime.media_file_storage import MediaFileKind, MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryFile, MemoryMediaFileStorage
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

KEY_BYTES, NAME_BYTES = 32, 32
DOWNLOADED_BYTES_MAX = 512_000_000
"""Bytes of all downloads of all sessions together. Streamlit drops what no page shows any more."""
UPLOADS_PER_SESSION = 4
"""A page asks for one contract at a time; a few may wait for the next run of the page."""
UPLOADED_BYTES_MAX = 64_000_000
"""Bytes of all uploads of all sessions together."""
INSUFFICIENT_STORAGE = 507


class PrivateDownloads(MemoryMediaFileStorage):
    """Downloads whose names nobody can compute, and no two of which share a name."""

    def __init__(self, media_endpoint: str) -> None:
        super().__init__(media_endpoint)
        self._key = secrets.token_bytes(KEY_BYTES)

    def load_and_get_id(
        self,
        path_or_data: str | bytes,
        mimetype: str,
        kind: MediaFileKind,
        filename: str | None = None,
    ) -> str:
        """Add a file. Returns its name, the same for the same content: Streamlit asks at each run
        of a page, and drops what no page shows any more. Raises MediaFileStorageError if all
        would take more than `DOWNLOADED_BYTES_MAX`."""
        content = self._read_file(path_or_data) if isinstance(path_or_data, str) else path_or_data
        digest = hashlib.blake2b(key=self._key, digest_size=NAME_BYTES)
        for part in (mimetype.encode(), (filename or "").encode(), content):
            # With its length, so that no two lists of parts make the same text.
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        file_id = digest.hexdigest()
        if file_id not in self._files_by_id:
            stored = sum(file.content_size for file in [*self._files_by_id.values()])
            if stored + len(content) > DOWNLOADED_BYTES_MAX:
                raise MediaFileStorageError(
                    "Too much is being downloaded. Try again in some minutes."
                )
            self._files_by_id[file_id] = MemoryFile(content, mimetype, kind, filename)
        return file_id


class BoundedUploads(MemoryUploadedFileManager):
    """Uploads of which each session keeps the newest few, and all together a bound of bytes."""

    def add_file(self, session_id: str, file: UploadedFileRec) -> None:
        """Keep an upload. Raises HTTPException if the uploads of all sessions would take more than
        `UPLOADED_BYTES_MAX`."""
        with self._lock:
            uploads = self.file_storage.get(session_id, {})
            oldest = [*uploads][: max(0, len(uploads) - UPLOADS_PER_SESSION + 1)]
        for file_id in oldest:
            self.remove_file(session_id, file_id)
        with self._lock:
            if self._total_bytes + len(file.data) > UPLOADED_BYTES_MAX:
                raise HTTPException(
                    INSUFFICIENT_STORAGE, "Too much is being uploaded. Try again in some minutes."
                )
        super().add_file(session_id, file)


def use_own_storage() -> None:
    """Make Streamlit keep files in these classes. Its app looks them up by name when it starts."""
    memory_media_file_storage.MemoryMediaFileStorage = PrivateDownloads  # type: ignore[misc]
    memory_uploaded_file_manager.MemoryUploadedFileManager = BoundedUploads  # type: ignore[misc]
