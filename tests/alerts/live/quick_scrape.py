"""The process that polls a metrics page, reading and writing more often: a test waits for its rows."""

import sys
from functools import partial

from rlscope_otel.integrations import scrape

scrape._INTERVAL_S = 0.1
scrape.start_run = partial(scrape.start_run, flush_interval_s=0.1)

if __name__ == "__main__":
    sys.exit(scrape.main())
