"""Semaphores and events that the stand-in driver shares with others."""

from tests.native.driver_program import Program, lines_after
from tests.native.fakegpu.object_program import OBJECTS
from tests.native.machine import Machine

lines = lines_after(OBJECTS)


def test_semaphores_order_streams_and_every_process_that_has_the_file(machine: Machine) -> None:
    assert lines(
        machine,
        """
import mmap, os


class Handle(Structure):
    _fields_ = [
        ("type", c_int),
        ("fd", c_ulonglong * 2),
        ("flags", c_uint),
        ("rest", c_uint * 16),
    ]


def semaphore(type, file):
    made = c_void_p()
    return cuda.cuImportExternalSemaphore(
        byref(made), byref(Handle(type, (c_ulonglong * 2)(os.dup(file))))
    ), made


def many(*of):
    return (c_void_p * len(of))(*[s.value for s in of])


def value(number):
    return (c_ulonglong * 18)(number)


file, empty = os.memfd_create("timeline"), os.memfd_create("empty")
os.truncate(file, 8)
show(semaphore(6, file)[0], semaphore(11, file)[0], semaphore(9, empty)[0])
result, timeline = semaphore(9, file)
show(result, cuda.cuDestroyExternalSemaphore(None))
wait, signal = cuda.cuWaitExternalSemaphoresAsync, cuda.cuSignalExternalSemaphoresAsync
target = alloc(4096)
ok(cuda.cuMemsetD32_v2(target, 1, c_size_t(1)))
show(wait(many(timeline), value(5), 0, stream), wait(many(stream), value(5), 1, stream))
ok(wait(many(timeline), value(5), 1, stream))
ok(cuda.cuMemsetD32Async(target, 2, c_size_t(1), stream))
ok(signal(many(timeline), value(9), 1, stream))
show(cuda.cuStreamQuery(stream))
page = mmap.mmap(file, 8)
page[:8] = (5).to_bytes(8, "little")
ok(cuda.cuStreamSynchronize(stream))
show(number_at(target), int.from_bytes(page[:8], "little"))
binary_file = os.memfd_create("binary")
os.truncate(binary_file, 8)
binary = semaphore(1, binary_file)[1]
ok(signal(many(binary), value(0), 1, stream))
ok(wait(many(binary), value(0), 1, stream))
ok(cuda.cuStreamSynchronize(stream))
ok(wait(many(binary), value(0), 1, stream))
show(cuda.cuStreamQuery(stream))
ok(cuda.cuDestroyExternalSemaphore(binary))
os.pwrite(binary_file, b"\\1", 0)
ok(cuda.cuStreamSynchronize(stream))


class Node(Structure):
    _fields_ = [("semaphores", c_void_p), ("params", c_void_p), ("count", c_uint)]


graph, node, made, held, at = c_void_p(), c_void_p(), c_void_p(), many(timeline), value(20)
ok(cuda.cuGraphCreate(byref(graph), 0))
what = Node(ctypes.addressof(held), ctypes.addressof(at), 1)
ok(
    cuda.cuGraphAddExternalSemaphoresSignalNode(
        byref(node), graph, None, c_size_t(0), byref(what)
    )
)
ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
at[0] = 30
ok(cuda.cuGraphLaunch(made, stream))
ok(cuda.cuStreamSynchronize(stream))
show(int.from_bytes(page[:8], "little"))
ok(cuda.cuGraphExecExternalSemaphoresSignalNodeSetParams(made, node, byref(what)))
ok(cuda.cuGraphLaunch(made, stream))
ok(cuda.cuStreamSynchronize(stream))
show(int.from_bytes(page[:8], "little"))
""",
    ) == ["801 1 400", "0 400", "1 400", "600", "2 9", "600", "20", "30"]


def test_an_event_of_another_process_comes_when_that_process_is_there(machine: Machine) -> None:
    body = """
class Handle(Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
"""
    maker = Program(
        machine,
        OBJECTS
        + body
        + """
event, plain, handle, flag = c_void_p(), c_void_p(), Handle(), alloc(4096)
ok(cuda.cuMemsetD32_v2(flag, 0, c_size_t(1)))
ok(cuda.cuEventCreate(byref(plain), 2))
ok(cuda.cuEventCreate(byref(event), 6))
assert (
    cuda.cuIpcGetEventHandle(byref(handle), plain),
    cuda.cuEventCreate(byref(plain), 4),
) == (1, 1)
ok(cuda.cuIpcGetEventHandle(byref(handle), event))
show(bytes(handle).hex())
assert cuda.cuIpcOpenEventHandle(byref(plain), handle) == 201
sys.stdin.readline()
busy(stream)
ok(cuda.cuEventRecord(event, stream))
show("busy")
sys.stdin.readline()
ok(cuda.cuStreamSynchronize(stream))
show("idle")
sys.stdin.readline()
ok(cuda.cuStreamWaitValue32_v2(stream, flag, 1, 1))
ok(cuda.cuEventRecord(event, stream))
show("waits")
sys.stdin.readline()
cast(flag.value, POINTER(c_uint))[0] = 1
ok(cuda.cuStreamSynchronize(stream))
show("done")
sys.stdin.readline()
ok(cuda.cuEventDestroy_v2(event))
""",
    )
    watcher = Program(
        machine,
        OBJECTS
        + body
        + """
event, target = c_void_p(), alloc(4096)
ok(cuda.cuMemsetD32_v2(target, 1, c_size_t(1)))
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
ok(cuda.cuIpcOpenEventHandle(byref(event), handle))
show(cuda.cuEventQuery(event), cuda.cuEventElapsedTime(byref(c_float()), event, event))
sys.stdin.readline()
ok(cuda.cuEventSynchronize(event))
show(cuda.cuEventQuery(event))
sys.stdin.readline()
ok(cuda.cuStreamWaitEvent(stream, event, 0))
ok(cuda.cuMemsetD32Async(target, 2, c_size_t(1), stream))
show(cuda.cuEventQuery(event), cuda.cuStreamQuery(stream))
sys.stdin.readline()
ok(cuda.cuStreamSynchronize(stream))
show(number_at(target), cuda.cuEventQuery(event))
ok(cuda.cuEventDestroy_v2(event))
sys.stdin.readline()
show(
    cuda.cuIpcOpenEventHandle(byref(event), handle),
    cuda.cuIpcOpenEventHandle(byref(event), Handle()),
)
""",
        maker.line(),
    )

    def step(program: Program) -> str:
        program.go_on()
        return program.line()

    assert watcher.line() == "0 400"  # never recorded is there
    assert step(maker) == "busy"
    assert step(watcher) == "0"
    assert step(maker) == "idle"
    assert step(maker) == "waits"
    assert step(watcher) == "600 600"
    assert step(maker) == "done"
    assert step(watcher) == "2 0"
    maker.go_on()
    maker.rest()
    watcher.go_on()
    assert watcher.rest() == ["400 1"]
