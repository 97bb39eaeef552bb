"""Rows on their way to the processor: prefetching, dot products and secure random words.

Random rows miss every cache, so a tile's rows are asked for before the first is used. The dot products are written as
eight fixed lanes added up in one fixed order: fast, and the same bits wherever the row stands and whoever computes it:
``dot`` for one row, ``turned_dots`` for rows that follow each other.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numba.np.random.generator_core import next_uint64

from dpfastmh.steps.elementary import inlined

LANES = 8
LINE = 64  # bytes in a cache line
_I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_LANES64 = ir.VectorType(_F64, LANES)


def _row_pointer(context, builder, array_type, array, row):
    """Address of the first element of a row of a C-contiguous matrix."""
    made = make_array(array_type)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, made.strides)[0]
    base = builder.ptrtoint(made.data, _I64)
    return builder.add(base, builder.mul(stride, row)), stride


@intrinsic
def borrow(typingctx, value):
    """The same arrays, tuples of arrays and generators, without their reference counts.

    Compiled code counts a reference for every array of every tuple that it hands to a function, a microsecond a step
    in a loop with forty arrays. The caller of the loop keeps the originals alive for as long as it runs.
    """

    def strip(context, builder, kind, item):
        if isinstance(kind, types.BaseTuple):
            parts = [
                strip(context, builder, k, p) for k, p in zip(kind, cgutils.unpack_tuple(builder, item), strict=True)
            ]
            return context.make_tuple(builder, kind, parts)
        if isinstance(kind, types.Array | types.NumPyRandomGeneratorType):
            struct = context.make_helper(builder, kind, value=item)
            struct.meminfo = cgutils.get_null_value(struct.meminfo.type)
            return struct._getvalue()
        return item

    def codegen(context, builder, signature, args):
        return strip(context, builder, signature.args[0], args[0])

    return value(value), codegen


@intrinsic
def prefetch_row(typingctx, x, row):
    """Ask for the cache lines of row ``row`` of a matrix: every 64th byte of it and the last one."""

    def codegen(context, builder, signature, args):
        start, stride = _row_pointer(context, builder, signature.args[0], *args)
        reach = builder.sub(stride, _I64(1))
        with cgutils.for_range(builder, builder.udiv(builder.add(reach, _I64(LINE - 1)), _I64(LINE))) as loop:
            _prefetch(builder, builder.add(start, builder.mul(loop.index, _I64(LINE))))
        _prefetch(builder, builder.add(start, reach))
        return context.get_dummy_value()

    return types.void(x, row), codegen


@intrinsic
def prefetch_entry(typingctx, y, row):
    """Ask for the cache line of one entry of a vector."""

    def codegen(context, builder, signature, args):
        _prefetch(builder, _row_pointer(context, builder, signature.args[0], *args)[0])
        return context.get_dummy_value()

    return types.void(y, row), codegen


def _prefetch(builder, address):
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(hint, [builder.inttoptr(address, byte), _I32(0), _I32(3), _I32(1)])


def _broadcast(builder, value):
    """Eight lanes of one number."""
    kind = ir.VectorType(value.type, LANES)
    lanes = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _dots(count):
    """An intrinsic (x, row, v_1, ..., v_count) -> the ``count`` dot products of one row, in eight lanes each."""

    def codegen(context, builder, signature, args):
        element = context.get_value_type(signature.args[0].dtype)
        start, _ = _row_pointer(context, builder, signature.args[0], args[0], args[1])
        row = builder.inttoptr(start, element.as_pointer())
        vectors = [make_array(t)(context, builder, v).data for t, v in zip(signature.args[2:], args[2:], strict=True)]
        shape = make_array(signature.args[0])(context, builder, args[0]).shape
        columns = cgutils.unpack_tuple(builder, shape)[1]
        lanes = ir.VectorType(element, LANES)
        zero = ir.Constant(_LANES64, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(count)]
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANES64, [_LANES64] * 3), f"llvm.fma.v{LANES}f64"
        )

        def widen(value):
            return value if element == _F64 else builder.fpext(value, _LANES64)

        def add(x, loads):
            for total, v in zip(sums, loads, strict=True):
                builder.store(builder.call(fma, [x, v, builder.load(total)]), total)

        def load_whole(pointer, kind, width):
            loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
            loaded.align = width
            return loaded

        blocks = builder.udiv(columns, _I64(LANES))
        with cgutils.for_range(builder, blocks) as loop:
            at = builder.mul(loop.index, _I64(LANES))
            x = widen(load_whole(builder.gep(row, [at]), lanes, 4 if element != _F64 else 8))
            add(x, [load_whole(builder.gep(v, [at]), _LANES64, 8) for v in vectors])

        rest = builder.urem(columns, _I64(LANES))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
            # the row's last eight entries without those already counted: a load that reaches past the row's end waits
            # for a cache line that nobody asked for, whatever its mask says
            whole = builder.icmp_unsigned(">", blocks, _I64(0))
            at = builder.select(whole, builder.sub(columns, _I64(LANES)), _I64(0))
            first = builder.select(whole, builder.sub(_I64(LANES), rest), _I64(0))
            last = builder.select(whole, _I64(LANES), rest)
            position = ir.Constant(ir.VectorType(_I64, LANES), list(range(LANES)))
            mask = builder.and_(
                builder.icmp_unsigned(">=", position, _broadcast(builder, first)),
                builder.icmp_unsigned("<", position, _broadcast(builder, last)),
            )

            def load_rest(pointer, kind, scalar, width):
                name = f"llvm.masked.load.v{LANES}{'f64' if scalar == _F64 else 'f32'}.p0"
                function_type = ir.FunctionType(
                    kind, [kind.as_pointer(), _I32, ir.VectorType(ir.IntType(1), LANES), kind]
                )
                load = cgutils.get_or_insert_function(builder.module, function_type, name)
                nothing = ir.Constant(kind, [0.0] * LANES)
                return builder.call(load, [builder.bitcast(pointer, kind.as_pointer()), _I32(width), mask, nothing])

            x = widen(load_rest(builder.gep(row, [at]), lanes, element, 4 if element != _F64 else 8))
            add(x, [load_rest(builder.gep(v, [at]), _LANES64, _F64, 8) for v in vectors])

        results = []
        for total in sums:
            value, width = builder.load(total), LANES
            while width > 1:  # halves onto halves: one fixed tree
                width //= 2
                picks = ir.VectorType(_I32, width)
                low = builder.shuffle_vector(value, value, ir.Constant(picks, list(range(width))))
                high = builder.shuffle_vector(value, value, ir.Constant(picks, list(range(width, 2 * width))))
                value = builder.fadd(low, high)
            results.append(builder.extract_element(value, _I32(0)))
        if count == 1:
            return results[0]
        return context.make_tuple(builder, signature.return_type, results)

    result = types.float64 if count == 1 else types.UniTuple(types.float64, count)
    return result, codegen


@intrinsic
def dot(typingctx, x, row, a):
    """x[row]·a."""
    result, codegen = _dots(1)
    return result(x, row, a), codegen


@intrinsic
def dot2(typingctx, x, row, a, b):
    """(x[row]·a, x[row]·b) in one pass over the row."""
    result, codegen = _dots(2)
    return result(x, row, a, b), codegen


@intrinsic
def dot3(typingctx, x, row, a, b, c):
    """(x[row]·a, x[row]·b, x[row]·c) in one pass over the row."""
    result, codegen = _dots(3)
    return result(x, row, a, b, c), codegen


# -- rows that follow each other, by columns ---------------------------------------------------------------------------
@intrinsic
def _turn_block(typingctx, x, row, column, columns, place):
    """Eight rows' eight entries to eight columns: in three rounds, lanes 1, 2 and 4 apart change places."""

    def codegen(context, builder, signature, args):
        element = context.get_value_type(signature.args[0].dtype)
        width = 8 if element == _F64 else 4
        lanes, picks = ir.VectorType(element, LANES), ir.VectorType(_I32, LANES)
        start, stride = _row_pointer(context, builder, signature.args[0], args[0], args[1])
        start = builder.add(start, builder.mul(args[2], _I64(width)))
        block = []
        for k in range(LANES):
            at = builder.add(start, builder.mul(stride, _I64(k)))
            block.append(builder.load(builder.inttoptr(at, lanes.as_pointer())))
            block[-1].align = width
        for apart in (1, 2, 4):
            low = [lane + (LANES - apart if lane & apart else 0) for lane in range(LANES)]
            for k in range(LANES):
                if not k & apart:
                    pair = block[k], block[k + apart]
                    block[k] = builder.shuffle_vector(*pair, ir.Constant(picks, low))
                    block[k + apart] = builder.shuffle_vector(*pair, ir.Constant(picks, [at + apart for at in low]))
        goal, pitch = _row_pointer(context, builder, signature.args[3], args[3], args[2])
        goal = builder.add(goal, builder.mul(args[4], _I64(8)))
        for k, value in enumerate(block):
            wide = value if element == _F64 else builder.fpext(value, _LANES64)
            at = builder.add(goal, builder.mul(pitch, _I64(k)))
            builder.store(wide, builder.inttoptr(at, _LANES64.as_pointer())).align = 8
        return context.get_dummy_value()

    return types.void(x, row, column, columns, place), codegen


@inlined
def turn(x, start, n, columns):
    """columns[j, t] = x[start + t, j] for t < n; the last block of columns may do some of the one before it again."""
    d = columns.shape[0]
    blocks = n // LANES * LANES if d >= LANES else 0
    for t in range(0, blocks, LANES):
        for j in range(0, d - LANES + 1, LANES):
            _turn_block(x, start + t, j, columns, t)
        if d % LANES:
            _turn_block(x, start + t, d - LANES, columns, t)
    for t in range(blocks, n):
        for j in range(d):
            columns[j, t] = x[start + t, j]


@intrinsic
def turned_dots(typingctx, columns, place, a, at, out, k):
    """out[k, t] = x[t]·a[at:] of eight turned rows t = place, ..., to the last bit as ``dot`` has them.

    Column j is added to the same one of eight lanes, and the lanes by the same tree; what is not counted has weight 0.
    """

    def codegen(context, builder, signature, args):
        shape = make_array(signature.args[0])(context, builder, args[0]).shape
        d = cgutils.unpack_tuple(builder, shape)[0]
        first, pitch = _row_pointer(context, builder, signature.args[0], args[0], _I64(0))
        first = builder.add(first, builder.mul(args[1], _I64(8)))
        weights = builder.gep(make_array(signature.args[2])(context, builder, args[2]).data, [args[3]])
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANES64, [_LANES64] * 3), f"llvm.fma.v{LANES}f64"
        )
        sums = [cgutils.alloca_once_value(builder, ir.Constant(_LANES64, [0.0] * LANES)) for _ in range(LANES)]

        def add(lane, j, live=None):
            weight = builder.load(builder.gep(weights, [j]))
            if live is not None:
                weight = builder.select(live, weight, _F64(0.0))
            address = builder.add(first, builder.mul(pitch, j))
            column = builder.load(builder.inttoptr(address, _LANES64.as_pointer()))
            column.align = 8
            total = builder.call(fma, [column, _broadcast(builder, weight), builder.load(sums[lane])])
            builder.store(total, sums[lane])

        with cgutils.for_range(builder, builder.udiv(d, _I64(LANES))) as loop:
            for lane in range(LANES):
                add(lane, builder.add(builder.mul(loop.index, _I64(LANES)), _I64(lane)))
        rest, wide = builder.urem(d, _I64(LANES)), builder.icmp_unsigned(">=", d, _I64(LANES))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
            # as in ``dot``: the last eight columns without those already counted
            begin = builder.select(wide, builder.sub(d, _I64(LANES)), _I64(0))
            for lane in range(LANES):
                late = builder.icmp_unsigned(">=", _I64(lane), builder.sub(_I64(LANES), rest))
                live = builder.select(wide, late, builder.icmp_unsigned("<", _I64(lane), rest))
                add(lane, builder.select(live, builder.add(begin, _I64(lane)), _I64(0)), live)
        found = [builder.load(total) for total in sums]
        while len(found) > 1:
            half = len(found) // 2
            found = [builder.fadd(low, high) for low, high in zip(found[:half], found[half:], strict=True)]
        goal, _ = _row_pointer(context, builder, signature.args[4], args[4], args[5])
        goal = builder.add(goal, builder.mul(args[1], _I64(8)))
        builder.store(found[0], builder.inttoptr(goal, _LANES64.as_pointer())).align = 8
        return context.get_dummy_value()

    return types.void(columns, place, a, at, out, k), codegen


@intrinsic
def multiply_wide(typingctx, a, b):
    """The 128-bit product of two unsigned words: its upper half as an index, its lower half."""

    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        upper = builder.trunc(builder.lshr(product, wide(64)), _I64)
        return context.make_tuple(builder, signature.return_type, [upper, builder.trunc(product, _I64)])

    return types.Tuple([types.int64, types.uint64])(types.uint64, types.uint64), codegen


@inlined
def word(stream):
    """64 random bits."""
    return next_uint64(stream.bit_generator)


@inlined
def uniform(stream):
    """A uniform multiple of 2⁻⁵³ in [0, 1)."""
    return float(next_uint64(stream.bit_generator) >> 11) * 1.1102230246251565e-16


@inlined
def pick(stream, n):
    """An index below n; each has probability 1/n within a relative n·2⁻⁶⁴."""
    return multiply_wide(next_uint64(stream.bit_generator), n)[0]


@inlined
def pick_and_uniform(stream, n):
    """An index below n and a uniform number from one word w: the whole part of w·n/2⁶⁴ and what is left of it.

    Given the index, the rest runs through a grid of spacing n·2⁻⁶⁴: any threshold is met with its probability within
    that, a few parts in 10¹³ for a million rows.
    """
    index, rest = multiply_wide(next_uint64(stream.bit_generator), n)
    return index, float(rest >> 11) * 1.1102230246251565e-16
