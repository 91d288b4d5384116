"""Body of the process that `Preparation` starts."""

from __future__ import annotations

import json
from pathlib import Path

from dsearch.encoder.automatic.outcome import record_problem
from dsearch.encoder.automatic.trained import TrainedChange, forget_earlier, trained_request
from dsearch.encoder.encoder import Encoder
from dsearch.encoder.exported.making import ensure_exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import find_weights
from dsearch.errors import InvalidRequest


def prepare(name: str, cache: str, trained: str | None = None) -> None:
    """Export an encoder, in the process that `Preparation` starts; a problem is printed as JSON.

    Args:
        name: name of the encoder.
        cache: folder of exports.
        trained: a trained change of it, as `TrainedChange.to_json` gives it.
    """
    if trained is None:
        request = Exporting(name, find_weights(name), None, Path(cache), lambda: Encoder.load(name))
    else:
        request = trained_request(TrainedChange.from_json(trained), Path(cache))
    try:
        ensure_exported(request)
        if trained is not None:
            forget_earlier(request)
    except InvalidRequest as error:  # of this model: the same next time
        record_problem(request, str(error))
        print(json.dumps({"problem": str(error)}))
    except Exception as error:
        print(json.dumps({"problem": f"{type(error).__name__}: {error}"}))
