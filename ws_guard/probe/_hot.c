/* The hot path in C: the same as `native_op` and `graphs` do in Python, at a tenth of the cost.
 *
 * A `Counted` stands for a native function. It looks a call up among the shapes that its `Lane`
 * knows, that of the current run first; one that is known adds one to a counter of the slot and
 * writes down the time, and a ring word where a run begins with it. Any other goes to the Python
 * probe, which does everything else. A `Replay` stands for `CUDAGraph.replay` and adds what an
 * `Account` holds. Nothing here raises by itself, makes what the garbage collector counts, or lets
 * go of the GIL between looking a call up and counting it: whoever has a lane forget what it knows
 * may unmap the slot right after.
 *
 * Limited API of Python 3.10: one build for every later version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define MAX_NUMBERS 6
#define MAX_TENSORS 3
#define MAX_DIMS 6
#define MAX_TOLD (MAX_NUMBERS + 1 + MAX_TENSORS * MAX_DIMS)

/* Of a ring word, as in board/format.py. */
#define RING_RUNS 1024
#define TICK_BITS 10
#define CODE_BITS 18

static PyObject *name_shape, *name_data_ptr, *name_nbytes, *name_account;

static struct timespec clock_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now); /* the clock of time.monotonic */
  return now;
}

static void add(uint64_t *word, uint64_t much) {
  __atomic_fetch_add(word, much, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void stamp(double *moment) {
  struct timespec now = clock_now();
  double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  __atomic_store(moment, &seconds, __ATOMIC_RELAXED);
}

/* ---- Lane: the shapes of an op that are counted here, and its current run ------------------- */

/* What a call is compared by: whose it is, and what its arguments tell. */
typedef struct {
  PyObject *owner; /* a Counted; borrowed, compared only */
  Py_ssize_t many;
  long long words[MAX_TOLD];
} Told;

/* A shape, and where it is counted. A row that several shapes share sums up their batches. */
typedef struct {
  uint64_t *count, *sum, batch, code;
  Told told; /* only as many words as it has */
} Shape;

static size_t words_bytes(const Told *told) { return sizeof(long long) * (size_t)told->many; }

/* Shapes stand where their hash says, or in the next free place. Python knows 24,576 at most. */
#define PLACE_BITS 16
#define NEAR 64

typedef struct {
  PyObject_HEAD
  unsigned long long code; /* the current run's ring word, without its time; 0: there is none */
  unsigned long long times_forgotten;
  Shape **known;           /* NULL until there is one */
  Py_ssize_t many;
  Shape *latest;           /* that of the last call, which is compared first */
  double *moment;          /* when the last call was, the run's ring word, and the ring */
  uint64_t *last_run, *ring;
  PyObject *next_place;    /* tells the next place in the ring; nothing of it refers to a lane */
} Lane;

static void lane_forget(Lane *self) {
  self->times_forgotten++;
  self->code = 0;
  self->latest = NULL;
  for (size_t at = 0; self->many > 0; at++)
    if (self->known[at] != NULL) {
      PyMem_Free(self->known[at]);
      self->known[at] = NULL;
      self->many--;
    }
  Py_CLEAR(self->next_place);
}

static Shape **first_place(const Lane *self, const Told *told) {
  uint64_t hash = (uint64_t)(uintptr_t)told->owner;
  for (Py_ssize_t i = 0; i < told->many; i++)
    hash = (hash ^ (uint64_t)told->words[i]) * 0x9E3779B97F4A7C15u;
  return self->known + (hash >> (64 - PLACE_BITS));
}

static int is_like(const Shape *shape, const Told *told) {
  return shape->told.owner == told->owner && shape->told.many == told->many &&
         memcmp(shape->told.words, told->words, words_bytes(told)) == 0;
}

/* Where such a shape is, or may be put; NULL where its places are taken by others. */
static Shape **find(const Lane *self, const Told *told) {
  Shape **place = first_place(self, told);
  for (Shape **end = place + NEAR; place < end; place++)
    if (*place == NULL || is_like(*place, told)) return place;
  return NULL;
}

/* Note in the ring that a run begins. -1, and nothing is noted, where the ring has no place. */
static int begin_run(Lane *self, uint64_t code) {
  PyObject *told = PyObject_CallNoArgs(self->next_place); /* of itertools: no Python runs */
  long place = told == NULL ? -1 : PyLong_AsLong(told);
  Py_XDECREF(told);
  if (place < 0 || place >= RING_RUNS) {
    PyErr_Clear();
    return -1;
  }
  struct timespec now = clock_now();
  uint64_t ticks = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) >> TICK_BITS;
  store(self->ring + place, ticks << CODE_BITS | code);
  store(self->last_run, ticks << CODE_BITS | code);
  self->code = code;
  return 0;
}

/* Count a call of a known shape; 0 where Python has to look at it. */
static int count_call(Lane *self, const Told *told) {
  Shape *shape = self->latest;
  if (shape == NULL || !is_like(shape, told)) {
    Shape **place = self->many ? find(self, told) : NULL;
    if (place == NULL || *place == NULL) return 0;
    shape = self->latest = *place;
  }
  if (self->code != shape->code && begin_run(self, shape->code) < 0) return 0;
  add(shape->count, 1);
  if (shape->sum != NULL) add(shape->sum, shape->batch);
  stamp(self->moment);
  return 1;
}

static PyObject *lane_forget_method(Lane *self, PyObject *unused) {
  (void)unused;
  lane_forget(self);
  Py_RETURN_NONE;
}

static int tell_all(PyObject *tuple, long long *into) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++)
    into[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  return PyErr_Occurred() ? -1 : 0;
}

/* follow(times_forgotten, owner, numbers, is_none, seen, batch, code, (addresses of count, sum,
 * moment, last_run and ring, next_place)). Nothing, where the lane was made to forget since. */
static PyObject *lane_follow(Lane *self, PyObject *args) {
  PyObject *numbers, *seen, *next_place;
  unsigned long long times_forgotten, count, sum, batch, code, moment, last_run, ring;
  int is_none;
  Told told;
  if (!PyArg_ParseTuple(args, "KOO!pO!KK(KKKKKO)", &times_forgotten, &told.owner, &PyTuple_Type,
                        &numbers, &is_none, &PyTuple_Type, &seen, &batch, &code, &count, &sum,
                        &moment, &last_run, &ring, &next_place))
    return NULL;
  Py_ssize_t many = PyTuple_Size(numbers), more = PyTuple_Size(seen);
  if (many > MAX_NUMBERS || more > MAX_TENSORS * MAX_DIMS) {
    PyErr_SetString(PyExc_ValueError, "more to compare than there is room for");
    return NULL;
  }
  told.many = many + 1 + more;
  told.words[many] = is_none;
  if (tell_all(numbers, told.words) < 0 || tell_all(seen, told.words + many + 1) < 0) return NULL;
  /* What was told may be of a slot that is gone. From here on nothing lets another thread in. */
  if (times_forgotten != self->times_forgotten) Py_RETURN_NONE;
  if (self->known == NULL) {
    self->known = PyMem_Calloc((1 << PLACE_BITS) + NEAR, sizeof(Shape *));
    if (self->known == NULL) return PyErr_NoMemory();
  }
  Shape **place = find(self, &told);
  if (place == NULL) { /* too many: one makes room */
    place = first_place(self, &told);
    if (self->latest == *place) self->latest = NULL;
    PyMem_Free(*place);
    *place = NULL;
    self->many--;
  }
  if (*place == NULL) {
    *place = PyMem_Malloc(offsetof(Shape, told.words) + words_bytes(&told));
    if (*place == NULL) return PyErr_NoMemory();
    memcpy(&(*place)->told, &told, offsetof(Told, words) + words_bytes(&told));
    self->many++;
  }
  Shape *shape = *place;
  shape->count = (uint64_t *)(uintptr_t)count;
  shape->sum = (uint64_t *)(uintptr_t)sum;
  shape->batch = batch;
  shape->code = code;
  self->moment = (double *)(uintptr_t)moment;
  self->last_run = (uint64_t *)(uintptr_t)last_run;
  self->ring = (uint64_t *)(uintptr_t)ring;
  PyObject *before = self->next_place;
  Py_INCREF(next_place);
  self->next_place = next_place;
  self->latest = shape;
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

static void free_object(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static void lane_dealloc(PyObject *self) {
  lane_forget((Lane *)self);
  PyMem_Free(((Lane *)self)->known);
  free_object(self);
}

static PyMemberDef lane_members[] = {
    {"ring_code", T_ULONGLONG, offsetof(Lane, code), 0,
     "The current run's ring word, without its time; 0: the next call begins one."},
    {"times_forgotten", T_ULONGLONG, offsetof(Lane, times_forgotten), READONLY,
     "How often `forget` was called: `follow` takes nothing that was told before the last time."},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef lane_methods[] = {
    {"follow", (PyCFunction)lane_follow, METH_VARARGS, "Count calls like that of the current run."},
    {"forget", (PyCFunction)lane_forget_method, METH_NOARGS, "Count no call until told again."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot lane_slots[] = {{Py_tp_doc, "The shapes of an op that are counted in C."},
                                   {Py_tp_methods, lane_methods},
                                   {Py_tp_members, lane_members},
                                   {Py_tp_dealloc, lane_dealloc},
                                   {Py_tp_new, PyType_GenericNew},
                                   {0, NULL}};

static PyType_Spec lane_spec = {"ws_guard.probe._hot.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT,
                                lane_slots};

/* ---- Counted: a native function under a probe ---------------------------------------------- */

enum { SHAPE, DATA_PTR, NBYTES };

typedef struct {
  PyObject_HEAD
  PyObject *native, *probe, *failed;
  Lane *lane;
  Py_ssize_t arguments;
  Py_ssize_t numbers_at[MAX_NUMBERS];
  int count_numbers;
  Py_ssize_t none_at;
  Py_ssize_t tensor_at[MAX_TENSORS];
  int tensor_what[MAX_TENSORS];
  int count_tensors;
} Counted;

/* What is looked at of a tensor, as numbers; how many, or -1 with an error set. */
static Py_ssize_t look(PyObject *tensor, int what, long long *into, Py_ssize_t room) {
  if (what == SHAPE) {
    PyObject *shape = PyObject_GetAttr(tensor, name_shape);
    if (shape == NULL) return -1;
    Py_ssize_t dims = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (dims < 0 || dims > room || dims > MAX_DIMS) {
      Py_DECREF(shape);
      PyErr_SetString(PyExc_TypeError, "not a shape");
      return -1;
    }
    for (Py_ssize_t i = 0; i < dims; i++) into[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    Py_DECREF(shape);
    return PyErr_Occurred() ? -1 : dims;
  }
  PyObject *told = what == DATA_PTR ? PyObject_CallMethodObjArgs(tensor, name_data_ptr, NULL)
                                    : PyObject_GetAttr(tensor, name_nbytes);
  if (told == NULL) return -1;
  into[0] = PyLong_AsLongLong(told);
  Py_DECREF(told);
  return PyErr_Occurred() ? -1 : 1;
}

/* What the arguments of a call tell. 0 where that is no matter for C, -1 with an error set. */
static int tell(Counted *self, PyObject *args, Told *told) {
  long long *numbers = told->words, *none = numbers + self->count_numbers, *seen = none + 1;
  told->owner = (PyObject *)self;
  told->many = self->count_numbers + 1;
  if (PyTuple_Size(args) != self->arguments) return 0;
  /* First whatever may run Python: from here on nothing lets another thread in. */
  for (int i = 0; i < self->count_tensors; i++) {
    Py_ssize_t more = look(PyTuple_GetItem(args, self->tensor_at[i]), self->tensor_what[i], seen,
                           told->words + MAX_TOLD - seen);
    if (more < 0) return -1;
    seen += more;
    told->many += more;
  }
  for (int i = 0; i < self->count_numbers; i++) {
    PyObject *number = PyTuple_GetItem(args, self->numbers_at[i]);
    if (!PyLong_Check(number)) return 0; /* a tensor there would be asked for its value */
    numbers[i] = PyLong_AsLongLong(number);
    if (numbers[i] == -1 && PyErr_Occurred()) return -1;
  }
  *none = PyTuple_GetItem(args, self->none_at) == Py_None;
  return 1;
}

static PyObject *counted_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  Counted *self = (Counted *)object;
  Told told;
  int known = kwargs == NULL && self->lane->many ? tell(self, args, &told) : 0;
  if (known < 0) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* an interrupt, which comes once */
    PyErr_Clear(); /* the probe meets it as well, and tells */
  }
  if (known <= 0 || !count_call(self->lane, &told)) return PyObject_Call(self->probe, args, kwargs);
  PyObject *result = PyObject_Call(self->native, args, NULL);
  if (result != NULL || !PyErr_ExceptionMatches(PyExc_Exception)) return result;
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  PyObject *heard = error ? PyObject_CallFunctionObjArgs(self->failed, error, NULL) : NULL;
  if (heard == NULL) PyErr_Clear();
  Py_XDECREF(heard);
  PyErr_Restore(type, error, trace);
  return NULL;
}

static int read_positions(PyObject *tuple, Py_ssize_t *into, int most, Py_ssize_t below) {
  Py_ssize_t count = PyTuple_Size(tuple);
  if (count > most) {
    PyErr_SetString(PyExc_ValueError, "too many positions");
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    into[i] = PyLong_AsSsize_t(PyTuple_GetItem(tuple, i));
    if (PyErr_Occurred()) return -1;
    if (into[i] < 0 || into[i] >= below) {
      PyErr_SetString(PyExc_ValueError, "a position is none of an argument");
      return -1;
    }
  }
  return (int)count;
}

/* Counted(native, probe, failed, lane, arguments, numbers_at, none_at, tensors_at, tensors_what) */
static PyObject *counted_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

static int counted_traverse(PyObject *object, visitproc visit, void *arg) {
  Counted *self = (Counted *)object;
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->native);
  Py_VISIT(self->probe);
  Py_VISIT(self->failed);
  Py_VISIT((PyObject *)self->lane);
  return 0;
}

static int counted_clear(PyObject *object) {
  Counted *self = (Counted *)object;
  if (self->lane != NULL) lane_forget(self->lane); /* another may come to stand where it stood */
  Py_CLEAR(self->native);
  Py_CLEAR(self->probe);
  Py_CLEAR(self->failed);
  Py_CLEAR(self->lane);
  return 0;
}

static void collected_dealloc(PyObject *object, inquiry clear) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(object);
  Py_DECREF(type);
}

static void counted_dealloc(PyObject *object) { collected_dealloc(object, counted_clear); }

static PyMemberDef counted_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Counted, native), READONLY, "The native function."},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot counted_slots[] = {{Py_tp_doc, "A native function whose calls are counted."},
                                      {Py_tp_call, counted_call},
                                      {Py_tp_new, counted_new},
                                      {Py_tp_members, counted_members},
                                      {Py_tp_traverse, counted_traverse},
                                      {Py_tp_clear, counted_clear},
                                      {Py_tp_dealloc, counted_dealloc},
                                      {0, NULL}};

static PyType_Spec counted_spec = {"ws_guard.probe._hot.Counted", sizeof(Counted), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, counted_slots};

static PyTypeObject *lane_type;

static PyObject *counted_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *native, *probe, *failed, *lane, *numbers_at, *tensors_at, *tensors_what;
  Py_ssize_t arguments, none_at, what[MAX_TENSORS];
  if (kwargs != NULL && PyDict_Size(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "Counted takes no keyword arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "OOOO!nO!nO!O!", &native, &probe, &failed, lane_type, &lane, &arguments,
                        &PyTuple_Type, &numbers_at, &none_at, &PyTuple_Type, &tensors_at,
                        &PyTuple_Type, &tensors_what))
    return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Counted *self = (Counted *)allocate(type, 0);
  if (self == NULL) return NULL;
  self->native = native;
  self->probe = probe;
  self->failed = failed;
  self->lane = (Lane *)lane;
  Py_INCREF(native);
  Py_INCREF(probe);
  Py_INCREF(failed);
  Py_INCREF(lane);
  self->arguments = arguments;
  self->none_at = none_at;
  self->count_numbers = read_positions(numbers_at, self->numbers_at, MAX_NUMBERS, arguments);
  self->count_tensors = read_positions(tensors_at, self->tensor_at, MAX_TENSORS, arguments);
  int kinds = read_positions(tensors_what, what, MAX_TENSORS, NBYTES + 1);
  if (self->count_numbers < 0 || self->count_tensors < 0 || kinds < 0) {
    Py_DECREF(self);
    return NULL;
  }
  if (kinds != self->count_tensors || none_at < 0 || none_at >= arguments) {
    PyErr_SetString(PyExc_ValueError, "positions that do not go together");
    Py_DECREF(self);
    return NULL;
  }
  for (int i = 0; i < kinds; i++) self->tensor_what[i] = (int)what[i];
  return (PyObject *)self;
}

/* ---- Account and Replay: graphs ------------------------------------------------------------- */

typedef struct {
  PyObject_HEAD
  Py_ssize_t count;
  uint64_t **words;
  uint64_t *much;
  double *moment;
  int is_current;
} Account;

static void account_forget(Account *self) {
  self->is_current = 0;
  self->moment = NULL;
  self->count = 0;
  PyMem_Free(self->words);
  PyMem_Free(self->much);
  self->words = NULL;
  self->much = NULL;
}

/* hold(((word_address, much), ...), moment_address) */
static PyObject *account_hold(Account *self, PyObject *args) {
  PyObject *additions;
  unsigned long long moment;
  account_forget(self);
  if (!PyArg_ParseTuple(args, "O!K", &PyTuple_Type, &additions, &moment)) return NULL;
  Py_ssize_t count = PyTuple_Size(additions);
  self->words = PyMem_Malloc(sizeof(uint64_t *) * (size_t)(count + 1));
  self->much = PyMem_Malloc(sizeof(uint64_t) * (size_t)(count + 1));
  if (self->words == NULL || self->much == NULL) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count; i++) {
    unsigned long long word, much;
    if (!PyArg_ParseTuple(PyTuple_GetItem(additions, i), "KK", &word, &much)) return NULL;
    self->words[i] = (uint64_t *)(uintptr_t)word;
    self->much[i] = much;
  }
  self->moment = (double *)(uintptr_t)moment;
  self->count = count;
  Py_RETURN_NONE;
}

static PyObject *account_forget_method(Account *self, PyObject *unused) {
  (void)unused;
  account_forget(self);
  Py_RETURN_NONE;
}

static void account_dealloc(PyObject *object) {
  account_forget((Account *)object);
  free_object(object);
}

static PyMemberDef account_members[] = {
    {"is_current", T_INT, offsetof(Account, is_current), 0,
     "Whether the graph replayed before is this one: then a replay is only counted."},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef account_methods[] = {
    {"hold", (PyCFunction)account_hold, METH_VARARGS, "What a replay adds, and where its time goes."},
    {"forget", (PyCFunction)account_forget_method, METH_NOARGS, "The slot is gone: add nothing."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot account_slots[] = {{Py_tp_doc, "What one replay of a graph adds to the slot."},
                                      {Py_tp_methods, account_methods},
                                      {Py_tp_members, account_members},
                                      {Py_tp_dealloc, account_dealloc},
                                      {Py_tp_new, PyType_GenericNew},
                                      {0, NULL}};

static PyType_Spec account_spec = {"ws_guard.probe._hot.Account", sizeof(Account), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, account_slots};

static PyTypeObject *account_type;

/* Counts a replay; 0 where Python has to look at it. */
static int count_replay(PyObject *graph) {
  PyObject *account = PyObject_GetAttr(graph, name_account);
  if (account == NULL) {
    PyErr_Clear();
    return 0;
  }
  int counted = account == Py_None;
  Account *self = PyObject_TypeCheck(account, account_type) ? (Account *)account : NULL;
  if (self != NULL && self->is_current && self->moment != NULL) {
    for (Py_ssize_t i = 0; i < self->count; i++) add(self->words[i], self->much[i]);
    stamp(self->moment);
    counted = 1;
  }
  Py_DECREF(account);
  return counted;
}

typedef struct {
  PyObject_HEAD
  PyObject *launch, *slow;
} Replay;

static PyObject *replay_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  Replay *self = (Replay *)object;
  int simple = kwargs == NULL && PyTuple_Size(args) == 1 && count_replay(PyTuple_GetItem(args, 0));
  return PyObject_Call(simple ? self->launch : self->slow, args, kwargs);
}

static PyObject *method_type; /* types.MethodType */

static PyObject *replay_get(PyObject *object, PyObject *graph, PyObject *owner) {
  (void)owner;
  if (graph == NULL || graph == Py_None) {
    Py_INCREF(object);
    return object;
  }
  return PyObject_CallFunctionObjArgs(method_type, object, graph, NULL);
}

/* Whatever else is asked of it, its name and text above all, is asked of the method it stands for. */
static PyObject *replay_getattr(PyObject *object, PyObject *name) {
  if (PyUnicode_CompareWithASCIIString(name, "__doc__") != 0) {
    PyObject *own = PyObject_GenericGetAttr(object, name);
    if (own != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
    PyErr_Clear();
  }
  return PyObject_GetAttr(((Replay *)object)->launch, name);
}

static PyObject *replay_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *launch, *slow;
  (void)kwargs;
  if (!PyArg_ParseTuple(args, "OO", &launch, &slow)) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Replay *self = (Replay *)allocate(type, 0);
  if (self == NULL) return NULL;
  self->launch = launch;
  self->slow = slow;
  Py_INCREF(launch);
  Py_INCREF(slow);
  return (PyObject *)self;
}

static int replay_traverse(PyObject *object, visitproc visit, void *arg) {
  Replay *self = (Replay *)object;
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->launch);
  Py_VISIT(self->slow);
  return 0;
}

static int replay_clear(PyObject *object) {
  Replay *self = (Replay *)object;
  Py_CLEAR(self->launch);
  Py_CLEAR(self->slow);
  return 0;
}

static void replay_dealloc(PyObject *object) { collected_dealloc(object, replay_clear); }

static PyMemberDef replay_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Replay, launch), READONLY, "The method as it was."},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot replay_slots[] = {{Py_tp_call, replay_call},
                                     {Py_tp_getattro, replay_getattr},
                                     {Py_tp_descr_get, replay_get},
                                     {Py_tp_new, replay_new},
                                     {Py_tp_members, replay_members},
                                     {Py_tp_traverse, replay_traverse},
                                     {Py_tp_clear, replay_clear},
                                     {Py_tp_dealloc, replay_dealloc},
                                     {0, NULL}};

static PyType_Spec replay_spec = {
    "ws_guard.probe._hot.Replay", sizeof(Replay), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR, replay_slots};

/* ---- the module ----------------------------------------------------------------------------- */

static PyObject *hook(PyObject *module, PyObject *graph) {
  (void)module;
  return PyBool_FromLong(count_replay(graph));
}

static PyMethodDef functions[] = {
    {"count_replay", hook, METH_O, "Count a replay of a graph; False where Python has to look at it."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_hot", "The hot path in C.", -1,
                                        functions, NULL, NULL, NULL, NULL};

static PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec) {
  PyObject *type = PyType_FromSpec(spec);
  if (type == NULL) return NULL;
  Py_INCREF(type);
  if (PyModule_AddObject(module, name, type) < 0) return NULL;
  return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__hot(void) {
  PyObject *module = PyModule_Create(&definition), *types;
  if (module == NULL) return NULL;
  name_shape = PyUnicode_InternFromString("shape");
  name_data_ptr = PyUnicode_InternFromString("data_ptr");
  name_nbytes = PyUnicode_InternFromString("nbytes");
  name_account = PyUnicode_InternFromString("_ws_guard_account");
  types = PyImport_ImportModule("types");
  method_type = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
  Py_XDECREF(types);
  lane_type = add_type(module, "Lane", &lane_spec);
  account_type = add_type(module, "Account", &account_spec);
  if (method_type == NULL || lane_type == NULL || account_type == NULL ||
      add_type(module, "Counted", &counted_spec) == NULL ||
      add_type(module, "Replay", &replay_spec) == NULL)
    return NULL;
  PyModule_AddIntConstant(module, "SHAPE", SHAPE);
  PyModule_AddIntConstant(module, "DATA_PTR", DATA_PTR);
  PyModule_AddIntConstant(module, "NBYTES", NBYTES);
  return module;
}
