"""A child with a child of its own: `polite` ends both when its input closes, `stubborn` ends neither."""

from __future__ import annotations

import subprocess
import sys
import time

from flows.server import wait_for_end_of_input

if __name__ == "__main__":
    below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if sys.argv[1] == "polite":
        wait_for_end_of_input()
        below.kill()
        below.wait()
    else:
        time.sleep(600)
