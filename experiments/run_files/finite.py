"""Numbers that JSON has no word for."""

import math
from typing import Any


def finite(document: Any) -> Any:
    """Return `document` with every non-finite float replaced by None.

    >>> finite({"epsilon": float("inf"), "rounds": [1, float("nan")]})
    {'epsilon': None, 'rounds': [1, None]}
    """
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document
