"""Simulates the order in which the backward of sm90 takes key blocks (reynard/attention/cuda/sm90/backward_producer.cuh).

    backward_schedule.py --length 65536 --global-heads 1 --local-heads 3 [--block-keys 128]

Key blocks of a (batch, head) pair add to the dQ of a tile of 64 queries by turns, in the order in which they are taken, so an
order may leave processors waiting. Prints, for the order in use and for quarters of rows alone, the time, what it is beside that
of the steps spread evenly, and shares of waiting and of the end where not all are busy. Memory and caches are not modelled.
Measured times on an H200 were within 10 % of these (docs/performance-cuda.md).
"""

import argparse
import heapq

TILE = 64  # queries


def div_up(a, b):
    return -(-a // b)


def group_of_many(blocks):
    return min(max(blocks // 4, 16), 64)


def in_groups(pairs, blocks, group, together):
    """(pair, key block) as `take_in_groups` takes them."""
    for begin in range(0, blocks, group):
        end = min(begin + group, blocks)
        for first in range(0, len(pairs), together):
            for n in reversed(range(begin, end)):
                for pair in pairs[first:first + together]:
                    yield pair, n


def in_quarters(pairs, blocks, tiles):
    together = max(min(max(256 // blocks, 1), 8), 256 // max(tiles, 1))
    return in_groups(pairs, blocks, group_of_many(blocks), together)


def of_others(pairs, blocks, tiles, processors):
    """As `take` does: rows that the processors hold as a whole, the last ones in quarters."""
    last = div_up(3 * processors, group_of_many(blocks))
    whole = max(len(pairs) - last, 0) if blocks <= processors else 0
    return [
        *in_groups(pairs[:whole], blocks, blocks, max(processors // blocks, 1)),
        *in_quarters(pairs[whole:], blocks, tiles),
    ]


def of_few(pairs, blocks, processors):
    """As `take_of_few` does."""
    group = div_up(processors, len(pairs))
    places = []
    for begin in range(0, min(2 * group, blocks), group):
        places += reversed(range(begin, min(begin + group, blocks)))
    for n in places + list(range(2 * group, blocks)):
        for pair in pairs:
            yield pair, n


def order(costly, others, blocks, tiles, processors):
    if 8 * len(costly) * group_of_many(blocks) < 7 * processors:
        return [*of_others(others, blocks, tiles, processors), *of_few(costly, blocks, processors)]
    return of_others(costly + others, blocks, tiles, processors)


def simulate(taken, last_tile, args):
    """last_tile(pair, n): the last tile that sees the key block."""
    added = {}  # (pair, tile): when the last addition was
    done = [0.0] * args.processors
    free = [(0.0, i) for i in range(args.processors)]  # when the loading thread takes the next task
    waited = steps = 0
    for pair, n in taken:
        since, processor = heapq.heappop(free)
        begin = now = max(since, done[processor]) + args.task
        before = latest = -1e18  # additions of the two steps before
        takes_next = begin
        first, last = n * args.block_keys // TILE, last_tile(pair, n)
        for tile in range(first, last + 1):
            waited += max(before - now, 0)
            now = max(now, before)
            if tile == max(first, last - 2):
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
    parser.add_argument("--block-keys", type=int, default=128, help="192 up to 64 dimensions, 64 above 128")
    parser.add_argument("--processors", type=int, default=132)
    parser.add_argument("--step", type=float, default=2.2, help="microseconds; 1.6 at 64 dimensions")
    parser.add_argument("--hand-over", type=float, default=3, help="microseconds from one addition to the next")
    parser.add_argument("--task", type=float, default=4, help="microseconds before the first step of a task")
    args = parser.parse_args()
    if args.global_heads < 1:
        parser.error(f"--global-heads {args.global_heads}; expected 1 or more: pairs of one cost are all costly")
    tiles, blocks = div_up(args.length, TILE), div_up(args.length, args.block_keys)
    costly = list(range(args.global_heads))
    others = list(range(args.global_heads, args.global_heads + args.local_heads))

    def last_tile(pair, n):
        seen_by = (n + 1) * args.block_keys - 1 + args.window if pair >= args.global_heads else args.length
        return min(seen_by // TILE, tiles - 1)

    orders = {"in use": order(costly, others, blocks, tiles, args.processors),
              "quarters of rows": list(in_quarters(costly + others, blocks, tiles))}
    for name, taken in orders.items():
        end, ratio, waiting, tail = simulate(taken, last_tile, args)
        print(f"{name:18s}{end / 1000:8.3f} ms, {ratio:.3f} of an even spread; waiting {waiting:.1%}, end {tail:.1%}")


if __name__ == "__main__":
    main()
