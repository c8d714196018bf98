"""Files for the user to take away."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saccade.investigations.edit_file import Edit

FOLDER = "edit"


def packed_edit(edit: Edit) -> bytes:
    """An edit's folder as a zip file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / FOLDER
        edit.save(folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"{FOLDER}/{file.name}")
    return packed.getvalue()
