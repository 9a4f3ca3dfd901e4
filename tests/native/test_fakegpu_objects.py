"""Objects of the stand-in driver: arrays and textures, semaphores, shared events, attributes, logs."""

from tests.native.driver_program import Program
from tests.native.machine import MIB, Machine

OBJECTS = """
from ctypes import POINTER, Structure, c_float, c_int, c_uint, c_ulonglong, cast
class Array(Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint), ("flags", c_uint)]
FLOAT = 0x20
def mipmap(levels, *sides, flags=0):
    made = c_void_p()
    ok(cuda.cuMipmappedArrayCreate(byref(made), byref(Array(*sides, FLOAT, 1, flags)), levels))
    return made
def level(of, number):
    made = c_void_p(); return cuda.cuMipmappedArrayGetLevel(byref(made), of, number), made
def sides(of):
    seen = Array(); ok(cuda.cuArray3DGetDescriptor_v2(byref(seen), of))
    return seen.width, seen.height, seen.depth
"""


def lines(machine: Machine, body: str) -> list[str]:
    return Program(machine, OBJECTS + body).rest()


def test_each_level_of_a_mipmap_is_an_array_with_content(machine: Machine) -> None:
    program = Program(
        machine,
        OBJECTS
        + """
flat, layered = mipmap(9, 1024, 512, 0), mipmap(3, 64, 64, 6, flags=1)
say([sides(level(flat, n)[1]) for n in (0, 1, 8)], level(flat, 9)[0], sides(level(layered, 2)[1]))
say(level(mipmap(40, 8, 2, 0), 3)[0], level(mipmap(40, 8, 2, 0), 4)[0])
class Copy(Structure):
    _fields_ = [(n, c_size_t) for n in "sx sy st sh sd sa sp dx dy dt dh dd da dp w h".split()]
words = (c_float * 4)(1, 2, 3, 4); back = (c_float * 4)()
for n in (1, 2):
    words[0] = n
    into = Copy(st=1, sh=ctypes.addressof(words), dt=3, da=level(flat, n)[1].value, w=16, h=1)
    ok(cuda.cuMemcpy2D_v2(byref(into)))
out = Copy(st=3, sa=level(flat, 1)[1].value, dt=1, dh=ctypes.addressof(back), w=16, h=1)
ok(cuda.cuMemcpy2D_v2(byref(out))); say(list(back)); beyond = Copy(st=3, sa=level(flat, 8)[1].value, dt=1,
    dh=ctypes.addressof(back), w=20, h=1); say(cuda.cuMemcpy2D_v2(byref(beyond)))
say(cuda.cuArrayDestroy(level(flat, 1)[1]), cuda.cuArrayGetPlane(byref(c_void_p()), level(flat, 0)[1], 0))
sys.stdin.readline(); ok(cuda.cuMipmappedArrayDestroy(flat)); say(cuda.cuMipmappedArrayDestroy(None))
""",
    )
    assert program.line() == "[(1024, 512, 0), (512, 256, 0), (4, 2, 0)] 1 (16, 16, 6)"
    assert [program.line() for _ in range(4)] == ["0 1", "[1.0, 2.0, 3.0, 4.0]", "1", "400 1"]
    flat = sum((1024 >> n) * (512 >> n) * 4 for n in range(9))
    layered = sum((64 >> n) ** 2 * 6 * 4 for n in range(3))
    small = 2 * 512  # 8 x 2, 4 x 1, 2 x 1 and 1 x 1 floats each

    def rounded(size: int) -> int:
        return -(-size // 512) * 512

    assert machine.used() == rounded(flat) + rounded(layered) + small
    program.go_on()
    assert program.rest() == ["400"]


def test_sparse_and_deferred_arrays_say_what_they_need(machine: Machine) -> None:
    assert lines(
        machine,
        """
needs, tiles = (c_size_t * 4)(), (c_uint * 12)()
plain, sparse, later = mipmap(5, 1024, 1024, 0), mipmap(5, 1024, 1024, 0, flags=0x40), mipmap(1, 1024, 1024, 0, flags=0x80)
ask = cuda.cuMipmappedArrayGetMemoryRequirements
say(ask(needs, plain, 0), ask(needs, later, 0), needs[0], needs[1], ask(needs, later, 7))
ask = cuda.cuMipmappedArrayGetSparseProperties
say(ask(tiles, plain), ask(tiles, sparse), list(tiles[:4]), c_ulonglong.from_buffer(tiles, 16).value)
width = c_size_t(); say(cuda.cuDeviceGetTexture1DLinearMaxWidth(byref(width), FLOAT, 4, 0), width.value,
    cuda.cuDeviceGetTexture1DLinearMaxWidth(byref(width), FLOAT, 3, 0))
class Memory(Structure):
    _fields_ = [("type", c_int), ("handle", c_void_p * 2), ("size", c_ulonglong), ("rest", c_uint * 18)]
class Mapped(Structure):
    _fields_ = [("offset", c_ulonglong), ("array", Array), ("levels", c_uint), ("rest", c_uint * 17)]
memory, made = c_void_p(), c_void_p(); ok(cuda.cuImportExternalMemory(byref(memory), byref(Memory(1, size=1 << 20))))
wanted = Mapped(0, Array(512, 256, 0, FLOAT, 1, 0), 3); call = cuda.cuExternalMemoryGetMappedMipmappedArray
say(call(byref(made), memory, byref(wanted)), level(made, 2)[0])
wanted.offset = 1 << 19; say(call(byref(made), memory, byref(wanted)))
""",
    ) == ["1 0 4194304 2097152 101", "1 0 [128, 128, 1, 4] 65536", "0 268435456 1", "0 0", "1"]


def test_texture_and_surface_objects_are_checked_and_shown(machine: Machine) -> None:
    assert lines(
        machine,
        """
class Resource(Structure):
    _fields_ = [("type", c_int), ("body", c_ulonglong * 16), ("flags", c_uint)]
texture, view, made = (c_uint * 26)(1, 1, 1, 1), (c_ulonglong * 14)(7, 64, 64), c_uint64()
arrays = [c_void_p(), c_void_p()]
for array, flags in zip(arrays, (0, 2)):
    ok(cuda.cuArray3DCreate_v2(byref(array), byref(Array(64, 64, 0, FLOAT, 1, flags))))
def create(resource, shown=None, how=texture):
    return cuda.cuTexObjectCreate(byref(made), byref(resource), how, shown)
flat = Resource(0, (c_ulonglong * 16)(arrays[0].value)); memory = alloc(4096)
def linear(at, size, channels=1): return Resource(2, (c_ulonglong * 16)(at, FLOAT | channels << 32, size))
say(create(linear(memory.value, 4096)), create(linear(memory.value + 4, 64)), create(linear(memory.value, 8192)),
    create(linear(memory.value, 64, 3)), create(linear(memory.value, 64), view), create(Resource(9)))
pitched = Resource(3, (c_ulonglong * 16)(memory.value, FLOAT | 1 << 32, 16, 8, 64))
narrow = Resource(3, (c_ulonglong * 16)(memory.value, FLOAT | 1 << 32, 17, 8, 64))
say(create(pitched), create(narrow), create(Resource(0)), create(flat, how=(c_uint * 26)(9)))
say(create(flat, view)); seen = Resource(); shown = (c_ulonglong * 14)()
say(cuda.cuTexObjectGetResourceDesc(byref(seen), made), seen.body[0] == arrays[0].value,
    cuda.cuTexObjectGetResourceViewDesc(shown, made), list(shown[:3]),
    cuda.cuTexObjectGetTextureDesc((c_uint * 26)(), made), cuda.cuSurfObjectDestroy(made))
say(cuda.cuTexObjectDestroy(made), cuda.cuTexObjectDestroy(made), cuda.cuTexObjectGetResourceDesc(byref(seen), made))
surface = Resource(0, (c_ulonglong * 16)(arrays[1].value))
say(cuda.cuSurfObjectCreate(byref(made), byref(flat)), cuda.cuSurfObjectCreate(byref(made), byref(surface)),
    cuda.cuSurfObjectGetResourceDesc(byref(seen), made), cuda.cuTexObjectDestroy(made), cuda.cuSurfObjectDestroy(made))
""",
    ) == ["0 1 1 1 1 1", "0 1 400 1", "0", "0 True 0 [7, 64, 64] 0 1", "0 1 1", "1 0 0 1 0"]


def test_semaphores_order_streams_and_whoever_else_has_the_file(machine: Machine) -> None:
    assert lines(
        machine,
        """
import mmap, os
class Handle(Structure):
    _fields_ = [("type", c_int), ("fd", c_ulonglong * 2), ("flags", c_uint), ("rest", c_uint * 16)]
def semaphore(type, file):
    made = c_void_p(); return cuda.cuImportExternalSemaphore(byref(made), byref(Handle(type, (c_ulonglong * 2)(os.dup(file))))), made
def many(*of): return (c_void_p * len(of))(*[s.value for s in of])
def value(number): return (c_ulonglong * 18)(number)
file, empty = os.memfd_create("timeline"), os.memfd_create("empty"); os.truncate(file, 8)
say(semaphore(6, file)[0], semaphore(11, file)[0], semaphore(9, empty)[0])
result, timeline = semaphore(9, file); say(result, cuda.cuDestroyExternalSemaphore(None))
wait, signal = cuda.cuWaitExternalSemaphoresAsync, cuda.cuSignalExternalSemaphoresAsync
target = alloc(4096); ok(cuda.cuMemsetD32_v2(target, 1, c_size_t(1)))
say(wait(many(timeline), value(5), 0, stream), wait(many(stream), value(5), 1, stream))
ok(wait(many(timeline), value(5), 1, stream)); ok(cuda.cuMemsetD32Async(target, 2, c_size_t(1), stream))
ok(signal(many(timeline), value(9), 1, stream)); say(cuda.cuStreamQuery(stream))
page = mmap.mmap(file, 8); page[:8] = (5).to_bytes(8, "little"); ok(cuda.cuStreamSynchronize(stream))
say(word_at(target), int.from_bytes(page[:8], "little"))
binary_file = os.memfd_create("binary"); os.truncate(binary_file, 8); binary = semaphore(1, binary_file)[1]
ok(signal(many(binary), value(0), 1, stream)); ok(wait(many(binary), value(0), 1, stream))
ok(cuda.cuStreamSynchronize(stream)); ok(wait(many(binary), value(0), 1, stream)); say(cuda.cuStreamQuery(stream))
ok(cuda.cuDestroyExternalSemaphore(binary)); os.pwrite(binary_file, b"\\1", 0); ok(cuda.cuStreamSynchronize(stream))
class Node(Structure):
    _fields_ = [("semaphores", c_void_p), ("params", c_void_p), ("count", c_uint)]
graph, node, made, held, at = c_void_p(), c_void_p(), c_void_p(), many(timeline), value(20)
ok(cuda.cuGraphCreate(byref(graph), 0)); what = Node(ctypes.addressof(held), ctypes.addressof(at), 1)
ok(cuda.cuGraphAddExternalSemaphoresSignalNode(byref(node), graph, None, c_size_t(0), byref(what)))
ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0))); at[0] = 30
ok(cuda.cuGraphLaunch(made, stream)); ok(cuda.cuStreamSynchronize(stream)); say(int.from_bytes(page[:8], "little"))
ok(cuda.cuGraphExecExternalSemaphoresSignalNodeSetParams(made, node, byref(what)))
ok(cuda.cuGraphLaunch(made, stream)); ok(cuda.cuStreamSynchronize(stream)); say(int.from_bytes(page[:8], "little"))
""",
    ) == ["801 1 400", "0 400", "1 400", "600", "2 9", "600", "20", "30"]


def test_an_event_of_another_process_comes_when_that_process_is_there(machine: Machine) -> None:
    body = """
class Handle(Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
"""
    maker = Program(
        machine,
        OBJECTS
        + body
        + """
event, plain, handle, flag = c_void_p(), c_void_p(), Handle(), alloc(4096)
ok(cuda.cuMemsetD32_v2(flag, 0, c_size_t(1)))
ok(cuda.cuEventCreate(byref(plain), 2)); ok(cuda.cuEventCreate(byref(event), 6))
assert (cuda.cuIpcGetEventHandle(byref(handle), plain), cuda.cuEventCreate(byref(plain), 4)) == (1, 1)
ok(cuda.cuIpcGetEventHandle(byref(handle), event)); say(bytes(handle).hex())
assert cuda.cuIpcOpenEventHandle(byref(plain), handle) == 201
sys.stdin.readline(); busy(stream); ok(cuda.cuEventRecord(event, stream)); say("busy")
sys.stdin.readline(); ok(cuda.cuStreamSynchronize(stream)); say("idle")
sys.stdin.readline(); ok(cuda.cuStreamWaitValue32_v2(stream, flag, 1, 1))
ok(cuda.cuEventRecord(event, stream)); say("waits")
sys.stdin.readline(); cast(flag.value, POINTER(c_uint))[0] = 1; ok(cuda.cuStreamSynchronize(stream)); say("done")
sys.stdin.readline(); ok(cuda.cuEventDestroy_v2(event))
""",
    )
    watcher = Program(
        machine,
        OBJECTS
        + body
        + """
event, target = c_void_p(), alloc(4096); ok(cuda.cuMemsetD32_v2(target, 1, c_size_t(1)))
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])); ok(cuda.cuIpcOpenEventHandle(byref(event), handle))
say(cuda.cuEventQuery(event), cuda.cuEventElapsedTime(byref(c_float()), event, event))
sys.stdin.readline(); ok(cuda.cuEventSynchronize(event)); say(cuda.cuEventQuery(event))
sys.stdin.readline(); ok(cuda.cuStreamWaitEvent(stream, event, 0))
ok(cuda.cuMemsetD32Async(target, 2, c_size_t(1), stream))
say(cuda.cuEventQuery(event), cuda.cuStreamQuery(stream))
sys.stdin.readline(); ok(cuda.cuStreamSynchronize(stream)); say(word_at(target), cuda.cuEventQuery(event))
ok(cuda.cuEventDestroy_v2(event)); sys.stdin.readline()
say(cuda.cuIpcOpenEventHandle(byref(event), handle), cuda.cuIpcOpenEventHandle(byref(event), Handle()))
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


def test_streams_and_kernel_nodes_have_attributes(machine: Machine) -> None:
    assert lines(
        machine,
        """
def word(*n): return (c_int * 16)(*n)
seen, level = word(), c_int(); get, put = cuda.cuStreamGetAttribute, cuda.cuStreamSetAttribute
say(get(stream, 3, seen), seen[0], put(stream, 3, word(3)), get(stream, 3, seen), seen[0], put(stream, 3, word(9)))
say(put(stream, 2, word(1)), put(stream, 99, word(1)), put(None, 3, word(1)), get(None, 3, seen))
ok(put(stream, 8, word(-99))); ok(cuda.cuStreamGetPriority(stream, byref(level))); say(level.value)
class Window(Structure):
    _fields_ = [("base", c_void_p), ("size", c_size_t), ("ratio", c_float), ("hit", c_int), ("miss", c_int), ("pad", c_int * 8)]
say(put(stream, 1, byref(Window(1, 2, 0.5, 2, 1))), put(stream, 1, byref(Window(1, 2, 1.5, 2, 1))),
    put(stream, 1, byref(Window(1, 2, 0.5, 2, 2))))
other = c_void_p(); ok(cuda.cuStreamCreate(byref(other), 1)); ok(cuda.cuStreamCopyAttributes(other, stream))
ok(get(other, 3, seen)); ok(cuda.cuStreamGetPriority(other, byref(level))); say(seen[0], level.value)
class Kernel(Structure):
    _fields_ = [("func", c_void_p), ("dims", c_uint * 7), ("rest", c_void_p * 4)]
graph, one, two = c_void_p(), c_void_p(), c_void_p(); ok(cuda.cuGraphCreate(byref(graph), 0))
what = Kernel(kernel(), (c_uint * 7)(1, 1, 1, 32, 1, 1, 0))
for node in (one, two): ok(cuda.cuGraphAddKernelNode_v2(byref(node), graph, None, c_size_t(0), byref(what)))
put, get = cuda.cuGraphKernelNodeSetAttribute, cuda.cuGraphKernelNodeGetAttribute
say(put(one, 4, word(2, 2, 1)), put(one, 4, word(2, 0, 1)), put(one, 3, word(1)), get(two, 4, seen), seen[0])
ok(cuda.cuGraphKernelNodeCopyAttributes(two, one)); ok(get(two, 4, seen)); say(list(seen[:3]))
""",
    ) == ["0 1 0 0 3 1", "1 1 801 0", "-5", "0 1 1", "3 -5", "0 1 1 0 0", "[2, 2, 1]"]


def test_what_was_advised_about_ranges_of_managed_memory_is_known(machine: Machine) -> None:
    assert lines(
        machine,
        """
memory, page = c_uint64(), 4096; size = c_size_t
class Place(Structure): _fields_ = [("type", c_int), ("id", c_int)]
ok(cuda.cuMemAllocManaged(byref(memory), size(8 * page), 1))
def at(pages): return c_uint64(memory.value + pages * page)
def ask(what, first, count, slots=1):
    seen = (c_int * slots)(*[99] * slots)
    result = cuda.cuMemRangeGetAttribute(seen, size(4 * slots), what, at(first), size(count * page))
    return list(seen) if result == 0 else result
say(ask(1, 0, 8), ask(2, 0, 8), ask(4, 0, 8), ask(9, 0, 8), ask(1, 0, 9), ask(1, 0, 1, 2))
ok(cuda.cuMemPrefetchAsync(at(0), size(4 * page), 1, stream)); ok(cuda.cuMemPrefetchAsync(at(4), size(4 * page), -1, stream))
say(ask(4, 0, 4), ask(4, 4, 4), ask(4, 0, 8), ask(4, 3, 2)); ok(cuda.cuMemPrefetchAsync(at(2), size(4 * page), 0, stream))
say(ask(4, 0, 2), ask(4, 2, 4), ask(4, 6, 2), ask(7, 2, 4), ask(8, 2, 4))
ok(cuda.cuMemAdvise(at(0), size(8 * page), 5, 1)); ok(cuda.cuMemAdvise(at(0), size(8 * page), 5, -1))
ok(cuda.cuMemAdvise(at(4), size(page), 6, 1)); say(ask(3, 0, 4, 3), ask(3, 0, 8, 3), ask(3, 5, 2, 1))
ok(cuda.cuMemAdvise(at(0), size(page), 1, 0)); ok(cuda.cuMemAdvise(at(0), size(page), 3, 1))
say(ask(1, 0, 1), ask(1, 0, 2), ask(2, 0, 1), ask(5, 0, 1), ask(6, 0, 1), cuda.cuMemAdvise(at(0), size(page), 3, 9))
ok(cuda.cuMemsetD32_v2(memory, 7, size(2 * page)))
starts, sizes = (c_uint64 * 2)(memory.value, at(6).value), (c_size_t * 2)(page, page)
places, indexes = (Place * 2)(Place(1, 0), Place(1, 1)), (c_size_t * 2)(0, 1); call = cuda.cuMemDiscardAndPrefetchBatchAsync
say(call(starts, sizes, size(2), places, indexes, size(2), c_uint64(0), None),
    call(starts, sizes, size(2), places, (c_size_t * 2)(0, 2), size(2), c_uint64(0), stream),
    call(starts, sizes, size(2), places, indexes, size(2), c_uint64(0), stream))
ok(cuda.cuStreamSynchronize(stream)); say(word_at(memory), word_at(at(1)), ask(4, 0, 1), ask(4, 6, 1))
say(cuda.cuMemPrefetchBatchAsync(starts, sizes, size(2), places, indexes, size(1), c_uint64(0), stream), ask(4, 6, 1),
    cuda.cuMemDiscardBatchAsync(starts, sizes, size(0), c_uint64(0), stream))
ok(cuda.cuMemFree_v2(memory)); ok(cuda.cuMemAllocManaged(byref(memory), size(8 * page), 1)); say(ask(4, 6, 1), ask(1, 0, 1))
""",
    ) == [
        "[0] [-2] [-2] 1 1 1",
        "[1] [-1] [-2] [-2]",
        "[1] [0] [-1] [1] [0]",
        "[-1, 1, -2] [-1, -2, -2] [-1]",
        "[1] [0] [1] [1] [1] 101",
        "1 1 0",
        "0 7 [0] [1]",
        "0 [0] 1",
        "[-2] [0]",
    ]


def test_pools_are_found_by_place_and_opened_to_other_cards(machine: Machine) -> None:
    machine.settings["devices"][0]["nvlinks"] = [1]
    machine.settings["devices"][1]["nvlinks"] = [0]
    machine.write()
    assert lines(
        machine,
        """
class Place(Structure): _fields_ = [("type", c_int), ("id", c_int)]
class Access(Structure): _fields_ = [("place", Place), ("flags", c_int)]
pool, same, flags = c_void_p(), c_void_p(), c_int()
get = cuda.cuMemGetDefaultMemPool
say(get(byref(pool), byref(Place(1, 0)), 1), get(byref(same), byref(Place(2, 0)), 1), get(byref(same), byref(Place(1, 0)), 9))
ok(cuda.cuDeviceGetDefaultMemPool(byref(same), 0)); say(same.value == pool.value)
def access(device): ok(cuda.cuMemPoolGetAccess(byref(flags), pool, byref(Place(1, device)))); return flags.value
say(access(0), access(1)); ok(cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 1), 3)), c_size_t(1)))
say(access(1), cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 0), 0)), c_size_t(1)),
    cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 9), 3)), c_size_t(1)))
props = (c_uint * 22)(1, 0, 1, 0); made = c_void_p(); ok(cuda.cuMemPoolCreate(byref(made), props))
ok(cuda.cuMemSetMemPool(byref(Place(1, 0)), 1, made)); ok(cuda.cuMemGetMemPool(byref(same), byref(Place(1, 0)), 1))
say(same.value == made.value, cuda.cuMemSetMemPool(byref(Place(1, 1)), 1, made))
can, operations = (c_uint * 2)(9, 9), (c_int * 2)(0, 10)
say(cuda.cuDeviceGetP2PAtomicCapabilities(can, operations, 2, 0, 1), list(can))
say(cuda.cuDeviceGetHostAtomicCapabilities(can, operations, 2, 0), list(can),
    cuda.cuDeviceGetHostAtomicCapabilities(can, (c_int * 2)(0, 13), 2, 0))
""",
    ) == ["0 801 1", "True", "3 0", "3 1 101", "True 1", "0 [31, 28]", "0 [0, 0] 1"]


def test_the_log_says_why_calls_failed(machine: Machine) -> None:
    file = machine.folder / "driver.log"
    assert lines(
        machine,
        f"""
CALL = ctypes.CFUNCTYPE(None, c_void_p, c_int, ctypes.c_char_p, c_size_t); heard = []
call = CALL(lambda data, level, text, length: heard.append((level, len(text) == length)))
handle, now, buffer, size = c_void_p(), c_uint(), ctypes.create_string_buffer(25600), c_size_t(25600)
ok(cuda.cuLogsRegisterCallback(call, None, byref(handle))); ok(cuda.cuLogsCurrent(byref(now), 0)); block = c_uint64()
ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0)); say(size.value)
def too_much(): return cuda.cuMemAlloc_v2(byref(block), c_size_t({9000 * MIB}))
say(too_much(), heard); size.value = 25600; ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0))
say(size.value == len(buffer.value), str({9000 * MIB}).encode() in buffer.value); size.value = 25600
ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0)); say(size.value)
ok(cuda.cuLogsUnregisterCallback(handle)); say(cuda.cuLogsUnregisterCallback(handle), too_much(), too_much(), len(heard))
size.value = 4; say(cuda.cuLogsDumpToMemory(None, buffer, byref(size), 0), size.value)
size.value = 150; ok(cuda.cuLogsDumpToMemory(None, buffer, byref(size), 0)); say(buffer.value.count(b"\\n"), size.value <= 149)
say(cuda.cuLogsDumpToFile(None, b"{file}", 0), cuda.cuLogsDumpToFile(None, b"{file}/none", 0), cuda.cuLogsDumpToFile(None, None, 0))
""",
    ) == ["0", "2 [(0, True)]", "True True", "0", "1 2 2 1", "1 0", "3 True", "0 304 1"]
    assert len(file.read_text().splitlines()) == 3
