"""What the programs of tests about graphs and captures begin with (driver_program.py)."""

GRAPHS = """
from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_uint, c_ulonglong, cast


class Fill(Structure):
    _fields_ = [
        ("dst", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class Kernel(Structure):
    _fields_ = [
        ("func", c_void_p),
        ("dims", c_uint * 7),
        ("params", POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    ]


class Host(Structure):
    _fields_ = [("fn", c_void_p), ("data", c_void_p)]


class Info(Structure):
    _fields_ = [("result", c_int), ("node", c_void_p), ("other", c_void_p)]


class Alloc(Structure):
    _fields_ = [
        ("pool", c_int * 22),
        ("access", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    ]


CALL = CFUNCTYPE(None, c_void_p)
N = c_size_t


def new_graph():
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


def nodes(*of):
    return (c_void_p * len(of))(*[n.value for n in of])


def fill(at, value, width=1):
    return Fill(at.value, 0, value, 4, width, 1)


def add_fill(graph, what, *after):
    node = c_void_p()
    made = cuda.cuGraphAddMemsetNode(
        byref(node), graph, nodes(*after), N(len(after)), byref(what), context
    )
    ok(made)
    return node


def instantiate(graph):
    made = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
    return made


def run(runnable):
    ok(cuda.cuGraphLaunch(runnable, stream))
    ok(cuda.cuStreamSynchronize(stream))


def count(call, *of):
    n = c_size_t()
    ok(getattr(cuda, call)(*of, byref(n)))
    return n.value


def alloc_node(graph, size):
    wanted, node = Alloc(size=size), c_void_p()
    wanted.pool[0] = wanted.pool[2] = 1
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, N(0), byref(wanted)))
    return node, c_uint64(wanted.pointer)


def free_node(graph, at, *after):
    node = c_void_p()
    return cuda.cuGraphAddMemFreeNode(byref(node), graph, nodes(*after), N(len(after)), at)
"""

CAPTURE = (
    GRAPHS
    + """
def new_stream():
    made = c_void_p()
    ok(cuda.cuStreamCreate(byref(made), 1))
    return made


def new_event():
    made = c_void_p()
    ok(cuda.cuEventCreate(byref(made), 0))
    return made


def begin(of, mode=0):
    ok(cuda.cuStreamBeginCapture_v2(of, mode))


def end(of):
    graph = c_void_p(7)
    return cuda.cuStreamEndCapture(of, byref(graph)), graph


def put(at, value, of):
    ok(cuda.cuMemsetD32Async(at, value, N(1), of))


def status(of):
    now = c_int()
    ok(cuda.cuStreamIsCapturing(of, byref(now)))
    return now.value


def record(event, of):
    return cuda.cuEventRecord(event, of)


def wait(of, event, flags=0):
    return cuda.cuStreamWaitEvent(of, event, flags)


def at(block, number):
    return c_uint64(block.value + 4 * number)


other, third, fork, join = new_stream(), new_stream(), new_event(), new_event()
target = alloc(4096)
ok(cuda.cuMemsetD32_v2(target, 0, N(1024)))
"""
)
