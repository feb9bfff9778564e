"""Two processes with a library that keeps pages for others, unmodified: one keeps them, the other gets them, and what it got is compared.
The one that keeps says that it is ready, and stays until it is ended.

cache.py LIBRARY ROLE ADDRESS PEER PORT: ROLE is "keeper" or "getter", ADDRESS this end's, and PORT where the keeper is found.
"""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

PAGE, PAGES, LIMIT = 64 << 10, 32, 30.0
LENGTH = PAGE * PAGES

library, role, address, peer, port = sys.argv[1:]
keys = [f"page-{at}" for at in range(PAGES)]
pattern = bytes(at * 7 % 251 for at in range(LENGTH))
buffer = ctypes.create_string_buffer(LENGTH)
here = ctypes.addressof(buffer)


def ready():
    print("ready", flush=True)


class PeerCache:
    """PeerCache's stores: pages stay with who puts them, which is the keeper, and has the directory too."""

    pages = {
        "target_locations": [here + at * PAGE for at in range(PAGES)],
        "target_sizes": [PAGE] * PAGES,
    }

    def open(self):
        from peercache.store import PeerCacheStore

        extra = {
            "discovery_addr": f"{address if role == 'keeper' else peer}:{port}",
            "local_hostname": address,
            "device_name": "elver0",
            "global_segment_size": "16mb",
            "disk_enabled": False,
            "metrics_enabled": False,
        }
        store = PeerCacheStore(extra=extra)
        # As SGLang gives it the memory that pages are in.
        buffer = SimpleNamespace(
            numel=lambda: LENGTH, element_size=lambda: 1, data_ptr=lambda: here
        )
        store.register_mem_pool_host(SimpleNamespace(kv_buffer=buffer))
        return store

    def keep(self):
        store = self.open()
        buffer.raw = pattern
        assert store.batch_set(keys, **self.pages), "not all pages were put"
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        ready()
        ended.wait()

    def get(self):
        store, end = self.open(), time.monotonic() + LIMIT
        while store.batch_exists(keys) < PAGES:
            assert time.monotonic() < end, "the pages are not found"
            time.sleep(0.05)
        got = store.batch_get(keys, **self.pages)
        assert all(place is not None for place in got), "not all pages were got"
        store.close()


class InfiniStore:
    """InfiniStore's server and client: pages are the server's, and the client puts them there before it gets them."""

    blocks = [(key, at * PAGE) for at, key in enumerate(keys)]
    device = {"link_type": "Ethernet", "dev_name": "elver0", "service_port": int(port)}

    def keep(self):
        import infinistore
        import uvloop

        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        # Its own program besides asks never to be killed for want of memory, which not each root may.
        config = infinistore.ServerConfig(prealloc_size=1, minimal_allocate_size=64, **self.device)
        infinistore.register_server(loop, config)
        loop.add_signal_handler(signal.SIGTERM, loop.stop)
        loop.call_soon(ready)
        loop.run_forever()
        # It crashes when it is taken down as it serves.
        os._exit(0)

    def get(self):
        import infinistore

        config = infinistore.ClientConfig(
            host_addr=peer, connection_type=infinistore.TYPE_RDMA, **self.device
        )
        store = infinistore.InfinityConnection(config)
        store.connect()
        store.register_mr(here, LENGTH)
        buffer.raw = pattern
        asyncio.run(store.rdma_write_cache_async(self.blocks, PAGE, here))
        assert all(map(store.check_exist, keys)), "not all pages were put"
        ctypes.memset(here, 0, LENGTH)
        asyncio.run(store.rdma_read_cache_async(self.blocks, PAGE, here))
        store.close()


cache = {"peercache": PeerCache, "infinistore": InfiniStore}[library]()
if role == "keeper":
    cache.keep()
else:
    cache.get()
    assert buffer.raw == pattern, "what was got is not what was put"
    print("same", flush=True)
