// The package's worker with an instrumented GPU.

import "./watch.js";
import "/folio-web/worker.js";
