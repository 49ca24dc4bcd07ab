"""Engines that are killed while a process they forked lives on: the server gets back what they held."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from test_native import CHUNK, Engine, Server, chunk_run, client, eventually, prompt


def _sleep() -> None:
    time.sleep(600)


def _victim(pipe: Connection, socket: str) -> None:
    """An engine with granted space and a pinned object, and a child that multiprocessing forks."""
    engine = Engine(socket, 2)
    seed = engine.register()
    engine.fill(3)
    chain = prompt(seed, CHUNK)
    assert engine.client.store(0, [chunk_run(chain, 0, [1, 2, 3, 4])])
    child = multiprocessing.get_context("fork").Process(target=_sleep)
    child.start()
    pipe.send(child.pid)
    time.sleep(600)


def test_a_forked_process_keeps_nothing_of_a_killed_engine(server: Server) -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    victim = spawn.Process(target=_victim, args=(theirs, server.socket))
    victim.start()
    assert ours.poll(120), "the victim does not start"
    child = ours.recv()
    tool = client(server.socket, "tool")

    def status() -> dict:
        return json.loads(tool.status_json())

    try:
        assert status()["pool"]["granted"] > 0
        assert len(status()["clients"]) == 1
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        eventually("its space and its slab", lambda: status()["pool"]["granted"] == 0 and not status()["clients"])
        os.kill(child, 0)  # it lives: what came back did not come with its end
    finally:
        os.kill(child, signal.SIGKILL)
        tool.close()
