# Blocks in nested calls. The tests know its lines.
import threading
import time

arrived = threading.Semaphore(0)


class Trainer:
    def __init__(self):
        self.token = "secret"

    def step(self, step, token="secret"):
        lost = -7
        big = 1 << 40
        flag = True
        _hidden = 9
        for item in self.batches(
            2,
        ):
            last = item
        return lost, big, flag

    def batches(self, count):
        inner = (lambda: count)()
        index = 0
        while index < count:
            if index == 1:
                yield lädt(
                    index,
                    inner,
                )
            index += 1
            yield index


def lädt(
    index,
    inner,
):
    zero = 0
    δ(
        zero,
        index,
        257, 2**30 - 1,
    )


def δ(a, b, c, d):
    𠀀()


def 𠀀():
    exact = 2**30
    below = -(2**30)
    wait(
        "secret",
    )


def wait(text):
    arrived.release()
    time.sleep(
        3600
    )


class Loader:
    async def fetch(self, attempt):
        wait(
            "secret"
        )

    async def load(self):
        await self.fetch(
            3,
        )


def load():
    Loader().load().send(None)


def announce():
    arrived.acquire()
    arrived.acquire()
    print("ready", flush=True)
    time.sleep(3600)


def main():
    for function in (
        load,
        announce,
    ):
        threading.Thread(target=function, daemon=True).start()
    Trainer().step(
        1204,
    )


if __name__ == "__main__":
    main()
