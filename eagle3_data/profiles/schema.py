"""The JSON Schema of a profile, for editors and for CI.

What enters: the model. What leaves: `schemas/profile.schema.json`, written by
`python -m eagle3_data.profiles.schema > schemas/profile.schema.json`; a test compares the two.
"""

from __future__ import annotations

import json
import sys

from eagle3_data.profiles.profile import Profile


def schema_text() -> str:
    """The schema as JSON text, keys in the order of the model."""
    return json.dumps(Profile.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
