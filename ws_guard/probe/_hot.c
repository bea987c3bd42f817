/* The hot path in C: the same as `native_op` and `graphs` do in Python, at a tenth of the cost.
 *
 * A `Counted` stands for a native function. It compares a call with the current run of its `Lane`; a
 * call like it adds one to a counter of the slot and writes down the time, any other goes to the
 * Python probe, which does everything else. A `Replay` stands for `CUDAGraph.replay` and adds what
 * an `Account` holds. Nothing here raises by itself, allocates, or lets go of the GIL between
 * looking at the run and counting: whoever ends a run may unmap the slot right after.
 *
 * Limited API of Python 3.10: one build for every later version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <time.h>

#define MAX_NUMBERS 6
#define MAX_TENSORS 3
#define MAX_DIMS 6

static PyObject *name_shape, *name_data_ptr, *name_nbytes, *name_account;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now); /* the clock of time.monotonic */
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void add(uint64_t *word, uint64_t much) {
  __atomic_fetch_add(word, much, __ATOMIC_RELAXED);
}

static void stamp(double *moment) {
  double now = seconds();
  __atomic_store(moment, &now, __ATOMIC_RELAXED);
}

/* ---- Lane: the run that the next call of an op is compared with ---------------------------- */

typedef struct {
  PyObject_HEAD
  PyObject *owner;             /* the Counted whose run it is; borrowed, compared only. NULL: none */
  long long numbers[MAX_NUMBERS];
  int is_none;
  long long seen[MAX_TENSORS * MAX_DIMS];
  Py_ssize_t count_seen;
  uint64_t *word;
  double *moment;
} Lane;

static PyObject *lane_clear(Lane *self, PyObject *unused) {
  (void)unused;
  self->owner = NULL;
  Py_RETURN_NONE;
}

/* follow(owner, numbers, is_none, seen, word_address, moment_address) */
static PyObject *lane_follow(Lane *self, PyObject *args) {
  PyObject *owner, *numbers, *seen;
  int is_none;
  unsigned long long word, moment;
  self->owner = NULL;
  if (!PyArg_ParseTuple(args, "OO!pO!KK", &owner, &PyTuple_Type, &numbers, &is_none, &PyTuple_Type,
                        &seen, &word, &moment))
    return NULL;
  Py_ssize_t many = PyTuple_Size(numbers), more = PyTuple_Size(seen);
  if (many > MAX_NUMBERS || more > MAX_TENSORS * MAX_DIMS) {
    PyErr_SetString(PyExc_ValueError, "more to compare than there is room for");
    return NULL;
  }
  for (Py_ssize_t i = 0; i < many; i++) self->numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(numbers, i));
  for (Py_ssize_t i = 0; i < more; i++) self->seen[i] = PyLong_AsLongLong(PyTuple_GetItem(seen, i));
  if (PyErr_Occurred()) return NULL;
  self->is_none = is_none;
  self->count_seen = more;
  self->word = (uint64_t *)(uintptr_t)word;
  self->moment = (double *)(uintptr_t)moment;
  self->owner = owner;
  Py_RETURN_NONE;
}

static void lane_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static PyMethodDef lane_methods[] = {
    {"follow", (PyCFunction)lane_follow, METH_VARARGS, "Compare calls of `owner` with this one."},
    {"clear", (PyCFunction)lane_clear, METH_NOARGS, "No call is like the current run any more."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot lane_slots[] = {{Py_tp_doc, "The current run of an op."},
                                   {Py_tp_methods, lane_methods},
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

static int is_like_the_run(Counted *self, PyObject *args) {
  long long seen[MAX_TENSORS * MAX_DIMS];
  Py_ssize_t count = 0;
  if (self->lane->owner != (PyObject *)self || PyTuple_Size(args) != self->arguments) return 0;
  /* First whatever may run Python: from here on nothing lets another thread in. */
  for (int i = 0; i < self->count_tensors; i++) {
    Py_ssize_t more = look(PyTuple_GetItem(args, self->tensor_at[i]), self->tensor_what[i],
                           seen + count, MAX_TENSORS * MAX_DIMS - count);
    if (more < 0) return -1;
    count += more;
  }
  long long numbers[MAX_NUMBERS];
  for (int i = 0; i < self->count_numbers; i++) {
    PyObject *number = PyTuple_GetItem(args, self->numbers_at[i]);
    if (!PyLong_Check(number)) return 0; /* a tensor there would be asked for its value */
    numbers[i] = PyLong_AsLongLong(number);
    if (numbers[i] == -1 && PyErr_Occurred()) return -1;
  }
  Lane *lane = self->lane;
  if (lane->owner != (PyObject *)self || count != lane->count_seen) return 0;
  if ((PyTuple_GetItem(args, self->none_at) == Py_None) != lane->is_none) return 0;
  for (int i = 0; i < self->count_numbers; i++)
    if (numbers[i] != lane->numbers[i]) return 0;
  for (Py_ssize_t i = 0; i < count; i++)
    if (seen[i] != lane->seen[i]) return 0;
  return 1;
}

static PyObject *counted_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  Counted *self = (Counted *)object;
  int like = kwargs == NULL ? is_like_the_run(self, args) : 0;
  if (like < 0) PyErr_Clear(); /* the probe meets it as well, and tells */
  if (like <= 0) return PyObject_Call(self->probe, args, kwargs);
  add(self->lane->word, 1);
  stamp(self->lane->moment);
  PyObject *result = PyObject_Call(self->native, args, NULL);
  if (result != NULL) return result;
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  PyObject *told = error ? PyObject_CallFunctionObjArgs(self->failed, error, NULL) : NULL;
  if (told == NULL) PyErr_Clear();
  Py_XDECREF(told);
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
  if (self->lane != NULL && self->lane->owner == object) self->lane->owner = NULL;
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
  lane_dealloc(object);
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
  if (PyObject_TypeCheck(account, account_type) && ((Account *)account)->is_current) {
    Account *self = (Account *)account;
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
