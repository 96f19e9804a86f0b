"""Writes lines of all lengths: two child processes short ones to stdout, this one meanwhile long ones to stderr.

lines.py CHILD_LINES LONG_LINES
"""
import multiprocessing
import os
import random
import sys
import zlib


def line(who, number, length):
    text = "".join(random.Random(f"{who} {number}").choices("abcdefghijklmnopqrstuvwxyz \tæ\x1b", k=length))
    body = f"{os.environ['RANK']} {who} {number} {text}".encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def write(fd, data):
    while data:
        data = data[os.write(fd, data):]


def child(who, count):
    for number in range(count):
        data = line(who, number, number * 37 % 1900)  # two bytes a letter at most: up to PIPE_BUF it is one piece
        assert len(data) <= 4096 and os.write(1, data) == len(data)


if __name__ == "__main__":
    children = [multiprocessing.get_context("fork").Process(target=child, args=(who, int(sys.argv[1])))
                for who in ("left", "right")]
    for process in children:
        process.start()
    for number in range(int(sys.argv[2])):
        write(2, line("main", number, number * 7919 % 100000))
    for process in children:
        process.join()
        assert process.exitcode == 0
