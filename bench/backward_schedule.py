"""Simulates the order in which the backward of sm90 takes key blocks (reynard/attention/cuda/sm90/key_block_order.h).

    backward_schedule.py --length 65536 --global-heads 1 --local-heads 3 [--dim 128]
    backward_schedule.py --length 16384 --global-heads 0 --local-heads 24 --documents 4

Key blocks of a (batch, head) pair add to the dQ of a tile of 64 queries by turns, in the order in which they are taken, so an
order may leave processors waiting. Prints, for the order in use and for the same waves all walking upwards, the time,
what it is beside that of the steps spread evenly, and shares of waiting and of the end where not all are busy. Memory and caches
are not modelled. Measured times on an H200 were within 10 % of these (docs/performance-cuda.md).
"""

import argparse
import heapq
import itertools

TILE = 64  # queries


def div_up(a, b):
    return -(-a // b)


class Taking:
    """(pair, key block, downwards) as `KeyBlockOrder` takes them."""

    def __init__(self, blocks, tiles, processors, rows_in_cache=8, only_upwards=False):
        self.blocks, self.all, self.only_upwards = blocks, processors, only_upwards
        self.rows_in_cache = max(min(rows_in_cache, 8), 1)
        self.least_pairs = 256 // tiles

    def wave_of(self, left, num_pairs):
        """Pairs of a wave, and key blocks of each."""
        rows = self.all // left
        if self.least_pairs > 1:
            rows = max(rows, self.least_pairs)
        if rows == 0:
            return 1, self.all
        if num_pairs <= rows:
            return num_pairs, left
        return (rows, left) if 8 * rows * left >= 7 * self.all else (rows + 1, self.all // (rows + 1))

    def begin_of_short_waves(self, num_pairs):
        _, begin = self.wave_of(self.blocks, num_pairs)
        while begin < self.blocks:
            _, of_row = self.wave_of(self.blocks - begin, num_pairs)
            if 2 * of_row < self.all:
                return begin
            begin += of_row
        return self.blocks

    def of_whole(self, pairs, begin, end):
        if not pairs:
            return
        waves = 0
        while begin < end:
            together, of_row = self.wave_of(self.blocks - begin, len(pairs))
            for first in range(0, len(pairs), together):
                downwards = len(pairs) > together and waves % 2 == 1 and not self.only_upwards
                row = range(begin, begin + of_row)
                for n in row if downwards else reversed(row):
                    for pair in pairs[first:first + together]:
                        yield pair, n, downwards
                waves += 1
            begin += of_row

    def of_others(self, pairs):
        together = max(self.rows_in_cache, self.least_pairs)
        for first in range(0, len(pairs), together):
            for n in reversed(range(self.blocks)):
                for pair in pairs[first:first + together]:
                    yield pair, n, False

    def of_long_row(self, pair):
        waves = div_up(self.blocks, self.all)
        for wave in range(waves):
            row = range(wave * self.all, min((wave + 1) * self.all, self.blocks))
            ascending = (waves - 1 - wave) % 4 < 2
            for n in row if ascending else reversed(row):
                yield pair, n, True

    def with_long_row(self, pair, others):
        own, others = self.of_long_row(pair), self.of_others(others)
        for begun in range(0, self.all, 6):
            yield from itertools.islice(own, min(6, self.all - begun))
            yield from itertools.islice(others, max(self.all - begun - 6, 0))
        yield from own
        yield from others

    def order(self, whole, others):
        if len(whole) == 1 and self.blocks > self.all and not self.only_upwards:
            yield from self.with_long_row(whole[0], others)
            return
        end = self.begin_of_short_waves(len(whole)) if others and whole else self.blocks
        yield from self.of_whole(whole, 0, end)
        yield from self.of_others(others)
        yield from self.of_whole(whole, end, self.blocks)


def simulate(taken, last_tile, args):
    """last_tile(pair, n): the last tile that sees the key block."""
    added = {}  # (pair, tile): when the last addition was
    done = [0.0] * args.processors
    free = [(0.0, i) for i in range(args.processors)]  # when the loading thread takes the next task
    waited = steps = 0
    for pair, n, downwards in taken:
        since, processor = heapq.heappop(free)
        begin = now = max(since, done[processor]) + args.task
        before = latest = -1e18  # additions of the two steps before
        takes_next = begin
        first, last = n * args.block_keys // TILE, last_tile(pair, n)
        tiles = range(last, first - 1, -1) if downwards else range(first, last + 1)
        for place, tile in enumerate(tiles):
            waited += max(before - now, 0)
            now = max(now, before)
            if place == max(len(tiles) - 3, 0):
                takes_next = now
            now += args.step
            steps += 1
            # A step's dQ is added at the end of the next one.
            when = max(now + args.step, added.get((pair, tile), -1e18) + args.hand_over)
            added[pair, tile] = when
            before, latest = latest, when
        waited += max(latest - now, 0)
        done[processor] = max(now, latest)
        heapq.heappush(free, (takes_next, processor))
    end = max(done)
    even = steps * args.step / args.processors
    return end, end / even, waited / args.processors / end, 1 - sum(done) / args.processors / end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=65536)
    parser.add_argument("--global-heads", type=int, default=1, help="(batch, head) pairs of which nothing is pruned")
    parser.add_argument("--local-heads", type=int, default=0, help="pairs whose queries see --window keys")
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--documents", type=int, default=1, help="equal ones that local heads see instead of windows")
    parser.add_argument("--dim", type=int, default=128, choices=(64, 128, 256), help="head dimension")
    parser.add_argument("--processors", type=int, default=132, help="of which at 256 dimensions two share a key block")
    parser.add_argument("--step", type=float, default=2.2, help="microseconds; 1.6 at 64 dimensions")
    parser.add_argument("--hand-over", type=float, default=3, help="microseconds from one addition to the next")
    parser.add_argument("--task", type=float, default=4, help="microseconds before the first step of a task")
    args = parser.parse_args()
    args.block_keys = 192 if args.dim == 64 else 128
    args.processors //= 2 if args.dim == 256 else 1
    tiles, blocks = div_up(args.length, TILE), div_up(args.length, args.block_keys)
    whole = list(range(args.global_heads))
    others = list(range(args.global_heads, args.global_heads + args.local_heads))
    document = div_up(args.length, args.documents)

    def last_tile(pair, n):
        last_key = min((n + 1) * args.block_keys, args.length) - 1
        end = args.length
        if pair >= args.global_heads:
            end = (last_key // document + 1) * document if args.documents > 1 else last_key + args.window
        return min((end - 1) // TILE, tiles - 1)

    if not whole + others:
        parser.error("--global-heads 0 --local-heads 0; expected one pair or more")

    # A tile of queries, its gradients and sums of dQ are 64 rows of 8 bytes a dimension.
    tile_bytes = TILE * args.dim * 8
    seen = sum(last_tile(args.global_heads, n) - n * args.block_keys // TILE + 1 for n in range(blocks)) // blocks
    rows_in_cache = (24 << 20) // tile_bytes // max(min(2 * seen, tiles), 1)
    orders = {
        name: Taking(blocks, tiles, args.processors, rows_in_cache, only_upwards).order(whole, others)
        for name, only_upwards in (("in use", False), ("upwards", True))
    }
    for name, taken in orders.items():
        end, ratio, waiting, tail = simulate(taken, last_tile, args)
        print(f"{name:18s}{end / 1000:8.3f} ms, {ratio:.3f} of an even spread; waiting {waiting:.1%}, end {tail:.1%}")


if __name__ == "__main__":
    main()
