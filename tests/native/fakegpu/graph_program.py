"""The beginning of programs that make graphs and captures (driver_program.py)."""

CAPTURE = """
from ctypes import Structure, c_int

N = c_size_t


class Alloc(Structure):
    _fields_ = [
        ("pool", c_int * 22),
        ("access", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    ]


def new_graph():
    graph = c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    return graph


def nodes(*of):
    return (c_void_p * len(of))(*[n.value for n in of])


def empty_node(graph, *after):
    node = c_void_p()
    ok(cuda.cuGraphAddEmptyNode(byref(node), graph, nodes(*after), N(len(after))))
    return node


def alloc_node(graph, size):
    wanted, node = Alloc(size=size), c_void_p()
    wanted.pool[0] = wanted.pool[2] = 1
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, N(0), byref(wanted)))
    return node, c_uint64(wanted.pointer)


def free_node(graph, at, *after):
    node = c_void_p()
    return cuda.cuGraphAddMemFreeNode(byref(node), graph, nodes(*after), N(len(after)), at)


def count(graph):
    n = c_size_t()
    ok(cuda.cuGraphGetNodes(graph, None, byref(n)))
    return n.value


def instantiate(graph):
    made = c_void_p()
    ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
    return made


def run(runnable):
    ok(cuda.cuGraphLaunch(runnable, stream))
    ok(cuda.cuStreamSynchronize(stream))


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


def status(of):
    now = c_int()
    ok(cuda.cuStreamIsCapturing(of, byref(now)))
    return now.value


def record(event, of):
    return cuda.cuEventRecord(event, of)


def wait(of, event, flags=0):
    return cuda.cuStreamWaitEvent(of, event, flags)


other, third, fork, join = new_stream(), new_stream(), new_event(), new_event()
"""
