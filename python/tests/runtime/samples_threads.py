"""A preload that leaves a thread."""

import threading

threading.Thread(target=threading.Event().wait, name="left-over", daemon=True).start()
