// The package's worker, with its GPU watched.

import "./watch.js";
import "/worker.js";
