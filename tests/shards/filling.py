"""Run by `test_shard_faults`: write shards where no file may grow beyond BYTES.

    python filling.py DIRECTORY BYTES

Prints the error of the writer, or "done".
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from making import large, write

from eagle3_data.shards.schema import ShardError

if __name__ == "__main__":
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        write(Path(sys.argv[1]), large())
        sys.stdout.write("done")
    except ShardError as error:
        sys.stdout.write(str(error))
