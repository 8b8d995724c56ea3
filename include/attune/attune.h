/* SPDX-License-Identifier: Apache-2.0 */
/* attune: one operation, attend(q, k, v, mask) -> (out, lse). This is the whole C interface.
 * Every function that returns int returns 0 on success, or 1 with a message in attune_last_error(). Zero is the default
 * of every field: clear a struct, set its size, then set the fields you need. Fields and roles are only ever appended.
 * All functions may be called from any thread at any time; many threads may run one plan concurrently.
 *
 * Environment variables, read when a device is first used:
 *   ATTUNE_BACKEND      a backend by name; its refusal is an error
 *   ATTUNE_TUNED        a tuned file, or a folder of <device>.tsv
 *   ATTUNE_LOG=1        prints one line on stderr for every new plan
 *   ATTUNE_POOL=attune  keeps freed GPU memory; default: driver, which leaves it to the driver's pool */
#ifndef ATTUNE_H
#define ATTUNE_H
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ATTUNE_API
#else
#define ATTUNE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { /* attune_last_code() */
  ATTUNE_OK,
  ATTUNE_INVALID,       /* the input is wrong: arguments, a file, an unknown word */
  ATTUNE_UNSUPPORTED,   /* the input is right, but this backend, build or machine cannot do it */
  ATTUNE_OUT_OF_MEMORY, /* of the host or of a device */
  ATTUNE_DEVICE,        /* the driver, the GPU or another process failed */
  ATTUNE_INTERNAL       /* a bug of this library */
};
enum { ATTUNE_FORWARD, ATTUNE_BACKWARD };
enum { ATTUNE_NONE, ATTUNE_F64, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_E4M3, ATTUNE_I32, ATTUNE_I64 };
enum { ATTUNE_FULL, ATTUNE_CAUSAL, ATTUNE_WINDOW };
enum { ATTUNE_BOTTOM_RIGHT, ATTUNE_TOP_LEFT, ATTUNE_ABSOLUTE };
enum { ATTUNE_LINEAR, ATTUNE_RAGGED, ATTUNE_PAGED };
enum { ATTUNE_REPRO_NO, ATTUNE_REPRO_RUN, ATTUNE_REPRO_BATCH };
enum { ATTUNE_PRECISION_FULL, ATTUNE_PRECISION_TF32, ATTUNE_PRECISION_TF32X3 };
enum { /* bits of options */
  ATTUNE_OPTION_SOFTCAP = 1 << 0,
  ATTUNE_OPTION_ALIBI = 1 << 1,
  ATTUNE_OPTION_BIAS = 1 << 2,
  ATTUNE_OPTION_DROPOUT = 1 << 3,
  ATTUNE_OPTION_SINK = 1 << 4,
  /* A forward reads out (f32) and lse, merges its result with them and writes them back. A backward adds to every given
   * gradient, and dq, dk and dv are f32. Given out and lse of a merged forward, the backward of each part yields that
   * part's contribution to the gradients. */
  ATTUNE_OPTION_ACCUMULATE = 1 << 5,
  /* All of k_new and v_new is written after the used keys of the cache, then attended like the rest. No other row of
   * the cache is modified. If rows do not fit, the CPU refuses the call before anything is written. On a GPU they are
   * dropped; attune_check and the cache objects refuse there too. */
  ATTUNE_OPTION_APPEND = 1 << 6,
  /* Rotates q and k_new; requires append. The first 2 R dims are rotated, where R is the width of rotary_cos and
   * rotary_sin: pairs (2i, 2i + 1) by angle i. The table row is the token's position. A new key is at its cache row,
   * padding included (used_k + n). A query is where the mask aligns it with the keys: with as many queries as new keys,
   * at used_k + i. flash_attn_with_kvcache uses the same positions. With ATTUNE_ABSOLUTE, `positions` determines
   * them. */
  ATTUNE_OPTION_ROTARY = 1 << 7,
  ATTUNE_OPTION_ROTARY_HALF = 1 << 8, /* the same, with pairs (i, i + R) */
  ATTUNE_OPTION_DESCALE = 1 << 9,
  /* Requires a block list; excludes bias. ATTUNE_BIAS is [block_bound] f32, with one value for each entry, at the
   * entry's index in block_column. The value is added to the logits of the entry's pairs, after softcap. Its gradient
   * is the sum over these pairs, and 0 where there is no entry. Lists that share entries share their values. */
  ATTUNE_OPTION_BLOCK_BIAS = 1 << 10
};
#define ATTUNE_NO_LIMIT INT32_MAX /* an unlimited window side */

/* The request: only what affects the choice of a backend or the code. These bytes are the key of the plan cache, which
 * keeps the plans of at most 4096 problems for each device and number of threads: about 4 MiB. A problem that it
 * dropped is planned again. */
typedef struct attune_problem {
  uint32_t size; /* sizeof(attune_problem) at the caller's compile time */
  int32_t pass;
  int32_t dtype_q, dtype_kv, dtype_out; /* 0: dtype_q */
  int32_t dtype_grad;                   /* of dq, dk, dv; 0: dtype_q. Backward only */
  int32_t dtype_bias;                   /* 0: f32. Only with option bias */
  int32_t batch, heads_q, heads_kv;     /* heads_kv 0: heads_q */
  int32_t len_q, len_k;                 /* upper bounds for one sequence */
  int32_t dim_qk, dim_v;                /* dim_v 0: dim_qk */
  int32_t mask, align, left, right;     /* left and right: window only, both inclusive */
  int32_t k_step, k_phase;              /* key j has position j * k_step + k_phase; step 0: 1 */
  int32_t block_q, block_k, block_bound; /* block list: block sizes and maximum entries; 0: none */
  uint32_t options;
  int32_t keys, page; /* page: keys per page, paged keys only */
  int32_t repro;
  int32_t precision;
  char variant[160]; /* "dilated rates=1,2 segments=2048,4096"; "" for none */
} attune_problem;

/* A tensor. The fields up to byte_offset match a DLTensor, in its layout; dtype is DLPack's code, bits and lanes.
 * DLPack does not define the meaning of axes, so `axes` does, with one letter per axis:
 *   b batch, p page | s sequence, t tokens of all sequences, q query | h head | d dim, k key, n number
 * The last group (d, k, n) is contiguous. An omitted axis has extent 1. Strides are not negative. */
typedef struct attune_tensor {
  void* data; /* may be null if the tensor is empty */
  struct {
    int32_t type, id; /* 1: CPU, 2: CUDA */
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits; /* code 0: integer, 2: float, 4: bfloat, 10: float8_e4m3fn */
    uint16_t lanes;
  } dtype;
  const int64_t* shape;
  const int64_t* strides; /* elements; null: compact */
  uint64_t byte_offset;
  const char* axes;
} attune_tensor;

enum { /* roles, with the axes of their tensors */
  ATTUNE_Q,             /* bshd in any order; with cu_q: thd */
  ATTUNE_K, ATTUNE_V,   /* bshd; ragged: thd; paged: pshd, where s is the slots of a page */
  ATTUNE_OUT,           /* as q. Input of a backward */
  ATTUNE_LSE,           /* bsh f32, natural log; optional unless accumulating. Input of a backward */
  ATTUNE_CU_Q,          /* n i32, batch + 1: first token of each sequence; any key source */
  ATTUNE_CU_K,          /* n i32, batch + 1: the same for ragged keys */
  ATTUNE_USED_Q,        /* b i32: queries present */
  ATTUNE_USED_K,        /* b i32: keys present, before an append */
  ATTUNE_LEFT_PAD,      /* b i32: number of leading keys that are padding */
  ATTUNE_CACHE_INDEX,   /* b i32: batch row of k and v to use */
  ATTUNE_PAGE_TABLE,    /* bn i32: pages of each sequence */
  ATTUNE_POSITIONS,     /* bn i64, n = 2: positions of query 0 and key 0; absolute masks */
  ATTUNE_BLOCK_BEGIN,   /* bhn i32, n = query blocks + 1: first entry of each query block; b and h may be 1 */
  ATTUNE_BLOCK_COLUMN,  /* n i32: key blocks */
  ATTUNE_BLOCK_BEGIN_K, /* the same list by key block, optional in a backward: bhn i32, n = key blocks + 1 */
  ATTUNE_BLOCK_ROW_K,   /* n i32: query blocks */
  ATTUNE_SLOPES,        /* h f32: ALiBi slopes */
  ATTUNE_SINKS,         /* h f32 */
  ATTUNE_BIAS,          /* bqhk in any order; an axis of extent 1 is broadcast */
  ATTUNE_SEED,          /* n i64, n = 2: dropout seed and offset */
  ATTUNE_K_NEW, ATTUNE_V_NEW,           /* bshd: appended to the cache */
  ATTUNE_ROTARY_COS, ATTUNE_ROTARY_SIN, /* sd f32: [position, rotated dims / 2] */
  ATTUNE_DESCALE_Q, ATTUNE_DESCALE_K, ATTUNE_DESCALE_V, /* bh f32, h: KV heads */
  ATTUNE_D_OUT,                         /* as out; this and the rest: backward */
  ATTUNE_D_LSE,                         /* as lse; optional */
  ATTUNE_DQ, ATTUNE_DK, ATTUNE_DV,      /* as q, k, v, in dtype_grad */
  ATTUNE_D_BIAS,                        /* f32, with the extents of bias; optional */
  ATTUNE_D_SINKS,                       /* h f32; optional */
  ATTUNE_VARIANT,                       /* ATTUNE_VARIANT + n: defined by the variant */
  ATTUNE_D_VARIANT = ATTUNE_VARIANT + 24,
  ATTUNE_ROLES = ATTUNE_D_VARIANT + 24
};

/* The arguments. They may change on every call: no plan depends on them. */
typedef struct attune_args {
  uint32_t size;         /* sizeof(attune_args) */
  float scale;           /* at most 1e30; 0: 1 / sqrt(dim_qk) */
  float softcap;         /* above 0 with the option, else 0 */
  float dropout;         /* 0 <= dropout < 1 with the option, else 0 */
  void* workspace;        /* 64-byte aligned, at least the plan's bytes. Null and 0 bytes: the library lends one; */
  size_t workspace_bytes; /* on the CPU the calling thread keeps it, on a GPU the pool provides it for the run */
  void* communicator;    /* for variants that span ranks */
  const attune_tensor* role[ATTUNE_ROLES]; /* null: not given. Last field: newer versions append roles */
} attune_args;

/* Problem lines, as in every table and message: "forward bf16 b2 h32/8 q4096 k4096 d128 causal". Set out->size to the
 * size of the struct before parsing. */
ATTUNE_API int attune_problem_parse(const char* line, attune_problem* out);
ATTUNE_API int attune_problem_format(const attune_problem* problem, char* out, size_t capacity);

/* Finds or makes the plan for the device of q, checks the arguments and runs. Does not wait for the stream. After an
 * error in the problem or the arguments, nothing has been written. */
ATTUNE_API int attune_call(const attune_problem* problem, const attune_args* args, void* stream);
/* Only checks the arguments, including the integers inside tensors (lengths, page tables, block lists). */
ATTUNE_API int attune_check(const attune_problem* problem, const attune_args* args);
/* The workspace that attune_call needs on a device; devices are named as in attune_plan_create. */
ATTUNE_API int attune_workspace(const attune_problem* problem, const char* device, size_t* bytes);

typedef struct attune_plan attune_plan; /* a plan to keep, or to inspect */
/* device: "cpu", "cpu:scalar" (this CPU without vector units), "cuda:0", or a device that need not be present ("h200");
 * null: "cpu". backend: a name, whose refusal is an error; null: ATTUNE_BACKEND, else the planner's choice. */
ATTUNE_API int attune_plan_create(const attune_problem* problem, const char* device, const char* backend,
                                  attune_plan** out);
ATTUNE_API size_t attune_plan_workspace(const attune_plan* plan);       /* bytes */
ATTUNE_API const char* attune_plan_backend(const attune_plan* plan);    /* "cpu_forward" */
/* "cpu_forward: first in the list of backends that supports it", then one line per backend that refused before it. */
ATTUNE_API const char* attune_plan_why(const attune_plan* plan);
ATTUNE_API int attune_plan_run(const attune_plan* plan, const attune_args* args, void* stream);
ATTUNE_API void attune_plan_destroy(attune_plan* plan);

/* Threads for CPU plans made afterwards, including those of attune_call; 0: all CPUs available to this process. */
ATTUNE_API int attune_set_threads(int threads);
ATTUNE_API int attune_threads(void);

/* The memory pool of a GPU ("cuda:0"). Buffers are stream-ordered: a buffer may be used by work on its allocation
 * stream and by work ordered after it. Free it on a stream that is ordered after all its uses. Neither call waits. A
 * GPU run without a workspace borrows one from the pool. During graph capture the buffer becomes part of the graph, and
 * no other allocation is allowed. The CPU ("cpu", null) has no pool: statistics, trim (for the calling thread) and
 * reset apply to the buffers lent to threads. */
typedef struct attune_memory {
  uint32_t size;                     /* sizeof(attune_memory) */
  uint32_t keeps;                    /* 1: freed blocks are kept for reuse; 0: they are returned to the driver */
  uint64_t live_buffers, live_bytes; /* allocated and not yet freed; bytes as requested */
  uint64_t block_bytes;              /* size of their blocks; the excess over live_bytes is lost to rounding */
  uint64_t free_blocks, free_bytes;  /* kept for reuse */
  uint64_t held_bytes;               /* total that the driver holds from the system */
  uint64_t high_buffers, high_bytes; /* peak of the live ones since attune_memory_reset */
  uint64_t high_reserved_bytes;      /* peak of block_bytes + free_bytes, likewise */
  uint64_t hits, misses;             /* allocations from kept blocks, and from the driver */
  uint64_t crossed, waited;          /* hits on a block of another stream; those that waited for that stream */
  uint64_t given_back;               /* blocks returned to the driver */
  uint64_t full;                     /* times the driver ran out of memory */
  uint64_t graph_buffers;            /* borrowed during captures */
} attune_memory;
ATTUNE_API int attune_memory_allocate(const char* device, size_t bytes, void* stream, void** out);
ATTUNE_API int attune_memory_free(const char* device, void* data, void* stream); /* data may be null */
/* Waits for the device, then frees blocks until at most `keep` bytes remain, live ones included. */
ATTUNE_API int attune_memory_trim(const char* device, size_t keep);
ATTUNE_API int attune_memory_reset(const char* device); /* restarts peaks at the current values */
ATTUNE_API int attune_memory_statistics(const char* device, attune_memory* out);

/* A KV cache that tracks the length of each of its sequences. It places new keys, allocates and frees pages, and
 * refuses calls that do not fit before anything is written. Use it from one thread at a time, with all calls on one
 * stream or in an equivalent order. */
typedef struct attune_cache_options {
  uint32_t size;                 /* sizeof(attune_cache_options) */
  int32_t dtype;                 /* of keys and values */
  int32_t heads, dim_qk, dim_v;  /* KV heads; dim_v 0: dim_qk */
  int32_t sequences;             /* maximum number; numbered from 0, initially empty */
  int32_t capacity;              /* maximum keys per sequence */
  int32_t page;                  /* keys per page; 0: not paged, `capacity` rows for each sequence */
  int32_t pages;                 /* in the pool, for all sequences; 0: as many as they can ever need */
  const char* device;            /* "cpu", "cuda:0"; null: "cpu" */
  void *k, *v;                   /* the caller's compact memory, bshd or pshd; both null: the library allocates */
} attune_cache_options;
typedef struct attune_cache attune_cache;
ATTUNE_API int attune_cache_create(const attune_cache_options* options, attune_cache** out);
ATTUNE_API void attune_cache_destroy(attune_cache* cache); /* after the stream has finished with it */
/* attune_call on `batch` sequences of the cache, each at most once (null: 0, 1, ...). The cache provides k, v, used_k,
 * cache_index and page_table, which must not be set, and keys, page and, if it is 0, len_k (its capacity). With
 * ATTUNE_OPTION_APPEND the sequences grow; q may have no rows, which only appends. An error leaves them unchanged. */
ATTUNE_API int attune_cache_attend(attune_cache* cache, const attune_problem* problem, const attune_args* args,
                                   const int32_t* sequences, void* stream);
/* Shrinking drops the last keys (all of them with 0) and releases pages that no sequence holds. After growing, the
 * caller fills the new rows. */
ATTUNE_API int attune_cache_resize(attune_cache* cache, int32_t sequence, int32_t length);
/* Sequence `to`, which must be empty, begins with the first `length` keys of `from`. Pages are shared and counted: no
 * key is copied until a sequence writes to a page that another one holds too; it then gets a copy of that page. Without
 * pages the keys are copied at once, in stream order. */
ATTUNE_API int attune_cache_fork(attune_cache* cache, int32_t from, int32_t to, int32_t length, void* stream);
ATTUNE_API int32_t attune_cache_length(const attune_cache* cache, int32_t sequence); /* -1 on error */
ATTUNE_API int32_t attune_cache_free_pages(const attune_cache* cache);               /* 0 if not paged */
/* The pages of a sequence on the host, as many as its length needs; valid until the cache changes. Null if not
 * paged. */
ATTUNE_API const int32_t* attune_cache_pages(const attune_cache* cache, int32_t sequence);
ATTUNE_API int attune_cache_view(const attune_cache* cache, int role, attune_tensor* out); /* ATTUNE_K or ATTUNE_V */

/* Block lists, built on the device of the data, in stream order and without reading anything back. Entries ascend, with
 * the same bits on every device. Density is the kept fraction of the blocks visible under the problem's mask (causal,
 * window); `counts` reports it. Masked blocks are never listed. */
typedef struct attune_blocks {
  uint32_t size;             /* sizeof(attune_blocks) */
  const char* pattern;       /* "random density=0.1 seed=7": docs/block_sparse.md; or */
  const attune_tensor* mask; /* bhqk, one byte (bool or 8 bits) per block, nonzero: active; b and h may be 1; or */
                             /* neither: block_begin and block_column exist already; the list by key block is */
                             /* built from them, or they are counted, or both */
  int64_t* counts;           /* ATTUNE_BLOCK_COUNTS numbers on the device of the lists; optional */
} attune_blocks;
enum { /* counts over all lists */
  ATTUNE_BLOCKS_ACTIVE,  /* entries; for existing lists, only visible ones */
  ATTUNE_BLOCKS_SHOWN,   /* blocks with a visible pair: density is active / shown */
  ATTUNE_BLOCKS_LONGEST, /* entries of the longest row */
  ATTUNE_BLOCKS_DROPPED, /* entries beyond block_bound; 0 for a pattern with the bound below */
  ATTUNE_BLOCK_COUNTS
};
/* The maximum number of entries of a pattern, for block_bound. The problem has block_q and block_k; batch and heads are
 * those of block_begin: 1 or the problem's. full: every sequence has the lengths len_q and len_k. */
ATTUNE_API int attune_blocks_bound(const attune_problem* problem, const char* pattern, int32_t batch, int32_t heads,
                                   int full, int64_t* bound);
/* Uses the roles of an attention with these lists. Writes block_begin, block_column and, if given, block_begin_k and
 * block_row_k. Reads lengths and positions; q and k are optional. */
ATTUNE_API int attune_blocks_build(const attune_problem* problem, const attune_args* args, const attune_blocks* blocks,
                                   void* stream);
/* Waits for the stream and reads counts from a device. */
ATTUNE_API int attune_blocks_counts(const char* device, const int64_t* counts, int64_t* out, void* stream);

/* Modules: layers with parameters, a forward and a backward. One line of text describes a module, docs/modules.md:
 *   "llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal"
 *   "multihead f32 b2 s512 e768 h12 norm=1 | causal : dilated mode=longnet norm=lse rates=1,2 segments=128,256"
 * Its sizes are fixed at creation. Its attention follows tuned rules and the list of backends; ATTUNE_BACKEND does not
 * apply. Concurrent calls on one module are safe while no thread changes its parameters or gradients. */
typedef struct attune_module attune_module;
typedef struct attune_module_options {
  uint32_t size;               /* sizeof(attune_module_options) */
  const char* device;          /* "cpu", "cuda:0"; null: "cpu" */
  const attune_module* shares; /* uses the parameters and gradients of this one, of any sizes; null: its own */
} attune_module_options;
typedef struct attune_module_sizes {
  uint32_t size;         /* sizeof(attune_module_sizes) */
  int32_t parameters;    /* number of named parameters */
  uint64_t parameter_bytes, gradient_bytes;
  uint64_t tape;         /* bytes a forward saves for its backward */
  uint64_t forward;      /* workspace bytes of a forward with a tape, */
  uint64_t forward_only; /* of a forward without a tape, */
  uint64_t backward;     /* and of a backward */
} attune_module_sizes;
typedef struct attune_module_args {
  uint32_t size;               /* sizeof(attune_module_args) */
  int32_t add;                 /* 1: add to parameter gradients; 0: overwrite them */
  const attune_tensor* x;      /* bsd, compact, 16-byte aligned, as are all below */
  const attune_tensor* memory; /* cross-attention only */
  const attune_tensor* out;    /* forward */
  const attune_tensor* d_out;  /* backward, as are: */
  const attune_tensor *dx, *d_memory; /* null: not needed */
  const attune_tensor* seed;   /* n i64, n = 2, dropout seed: the same in both passes; null: no dropout */
  void* tape;                  /* 64-byte aligned, sizes.tape bytes, unchanged between the passes; null: no backward */
  void* workspace;             /* 64-byte aligned, at least the bytes above; null: the library lends one */
  size_t workspace_bytes;
  void* communicator;          /* for variants that span ranks */
} attune_module_args;
ATTUNE_API int attune_module_create(const char* text, const attune_module_options* options, attune_module** out);
ATTUNE_API void attune_module_destroy(attune_module* module); /* after the stream has finished with it */
ATTUNE_API const char* attune_module_text(const attune_module* module); /* its line, in canonical spelling */
ATTUNE_API const char* attune_module_why(const attune_module* module);  /* the backends of its attention, and why */
ATTUNE_API int attune_module_measure(const attune_module* module, attune_module_sizes* out);
/* The name of parameter n; null beyond the last. The order is that of files. */
ATTUNE_API const char* attune_module_parameter_name(const attune_module* module, int32_t n);
/* A parameter's memory, readable and writable; and its f32 gradient, which is 0 before a backward. The first call for a
 * gradient, or the first backward, allocates all gradients and must not be captured. */
ATTUNE_API int attune_module_parameter(const attune_module* module, const char* name, attune_tensor* out);
ATTUNE_API int attune_module_gradient(const attune_module* module, const char* name, attune_tensor* out);
/* The module's own tape memory, for callers with one forward and backward at a time. The first call allocates it. */
ATTUNE_API int attune_module_tape(const attune_module* module, void** out);
/* Loads or saves every parameter in a safetensors file, under prefix + name (null: no prefix). convert: accepts other
 * floating dtypes in the file. A file that does not fit changes nothing. */
ATTUNE_API int attune_module_load(attune_module* module, const char* path, const char* prefix, int convert);
ATTUNE_API int attune_module_save(const attune_module* module, const char* path, const char* prefix);
ATTUNE_API int attune_module_forward(const attune_module* module, const attune_module_args* args, void* stream);
ATTUNE_API int attune_module_backward(const attune_module* module, const attune_module_args* args, void* stream);

/* A cache for Native Sparse Attention (docs/nsa.md): the raw streams of its three branches and the compressed stream,
 * for each sequence. New tokens go into the raw streams; every d of them produce a compressed token from the last l.
 * Prefill, chunked prefill and single tokens therefore give the same streams and select the same blocks. (For blocks
 * whose scores differ only in the last bits, this requires ATTUNE_REPRO_BATCH: docs/nsa.md.) Use it from one thread at
 * a time, with all calls on one stream or in an equivalent order. */
typedef struct attune_nsa_cache_options {
  uint32_t size;                /* sizeof(attune_nsa_cache_options) */
  int32_t dtype;                /* of keys and values */
  int32_t heads, dim_qk, dim_v; /* KV heads; dim_v 0: dim_qk */
  int32_t sequences;            /* maximum number; numbered from 0, initially empty */
  int32_t capacity;             /* maximum raw tokens per sequence */
  const char* variant;          /* "nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512" */
  const char* device;           /* "cpu", "cuda:0"; null: "cpu" */
} attune_nsa_cache_options;
typedef struct attune_nsa_cache attune_nsa_cache;
enum { /* streams: bshd, where b is sequences, and s is capacity or its number of compressed tokens */
  ATTUNE_NSA_K, ATTUNE_NSA_V, /* compression branch */
  ATTUNE_NSA_K_SELECT, ATTUNE_NSA_V_SELECT,
  ATTUNE_NSA_K_WINDOW, ATTUNE_NSA_V_WINDOW, /* absent with w=0 */
  ATTUNE_NSA_K_COMPRESSED, ATTUNE_NSA_V_COMPRESSED,
  ATTUNE_NSA_STREAMS
};
ATTUNE_API int attune_nsa_cache_create(const attune_nsa_cache_options* options, attune_nsa_cache** out);
ATTUNE_API void attune_nsa_cache_destroy(attune_nsa_cache* cache); /* after the stream has finished with it */
/* Appends, compresses and attends on `batch` sequences of the cache, each at most once (null: 0, 1, ...). Roles: q and
 * out; the new tokens of the branches, bshd, in k_new, v_new and variant tensors 0 ... 3; gates (4) and the weights of
 * phi (5 ... 14), as in a prefill; optionally tensors 15 ... 18. Queries are the last tokens of their sequences.
 * Without q it only appends; without new tokens it only attends. The problem may omit the variant and len_k (the
 * capacity). An error leaves the sequences unchanged. */
ATTUNE_API int attune_nsa_cache_attend(attune_nsa_cache* cache, const attune_problem* problem, const attune_args* args,
                                       const int32_t* sequences, void* stream);
/* Drops the last tokens; all of them with 0. */
ATTUNE_API int attune_nsa_cache_shorten(attune_nsa_cache* cache, int32_t sequence, int32_t length);
ATTUNE_API int32_t attune_nsa_cache_length(const attune_nsa_cache* cache, int32_t sequence); /* raw; -1 on error */
ATTUNE_API int32_t attune_nsa_cache_compressed(const attune_nsa_cache* cache, int32_t sequence); /* likewise */
ATTUNE_API int attune_nsa_cache_view(const attune_nsa_cache* cache, int stream, attune_tensor* out);

/* Ranks: docs/ring.md. A communicator is one rank's endpoint of a group, for variants that span ranks
 * (args.communicator). Use it from one thread at a time. Every wait has a timeout. After an error the communicator
 * stays broken and keeps reporting the cause. */
typedef struct attune_communicator attune_communicator;
/* Ranks as threads of this process: `out` has room for `ranks` communicators, one per thread. */
ATTUNE_API int attune_ranks_create(int32_t ranks, attune_communicator** out);
/* An MPI rank, through libattune_mpi: comm is an MPI_Comm*, null for MPI_COMM_WORLD. Initialises MPI if necessary. */
ATTUNE_API int attune_mpi_create(const void* comm, attune_communicator** out);
/* An NCCL rank on its own GPU ("cuda:0"). Rank 0 makes the id; the caller distributes it to the other ranks. */
#define ATTUNE_NCCL_ID 128
ATTUNE_API int attune_nccl_id(void* id); /* ATTUNE_NCCL_ID bytes */
ATTUNE_API int attune_nccl_create(const void* id, int32_t rank, int32_t ranks, const char* device,
                                  attune_communicator** out);
/* A transport implemented by the caller: torch.distributed, a custom network. Messages between two ranks keep their
 * order. A timeout or a lost peer returns nonzero. */
typedef struct attune_transfer {
  int32_t peer;
  int32_t receive; /* 0: send */
  void* data;      /* owned by the transport until finish */
  size_t bytes;
} attune_transfer;
typedef struct attune_transport {
  uint32_t size; /* sizeof(attune_transport) */
  int32_t rank, ranks;
  int32_t gpu; /* 1: accepts GPU addresses, in stream order; 0: the library stages through the host */
  void* self;
  /* Starts all transfers and returns. device: the GPU; -1: host memory. */
  int (*start)(void* self, const attune_transfer* transfers, int32_t count, int32_t device, void* stream,
               void** ticket);
  int (*finish)(void* self, void* ticket, double seconds, void* stream); /* once per start */
  void (*fail)(void* self, const char* why); /* this rank stops: started transfers no longer touch memory; or null */
  const char* (*error)(void* self);          /* the reason for a nonzero result; or null */
  void (*destroy)(void* self);               /* or null */
} attune_transport;
ATTUNE_API int attune_transport_create(const attune_transport* transport, attune_communicator** out);
ATTUNE_API int attune_communicator_limit(attune_communicator* communicator, double seconds); /* per wait; default 60 */
typedef struct attune_traffic {
  uint32_t size; /* sizeof(attune_traffic) */
  int32_t rank, ranks;
  uint32_t reserved;
  uint64_t sent, received, messages; /* bytes, and messages sent */
} attune_traffic;
ATTUNE_API int attune_communicator_traffic(const attune_communicator* communicator, attune_traffic* out);
ATTUNE_API int attune_communicator_barrier(attune_communicator* communicator);
ATTUNE_API void attune_communicator_destroy(attune_communicator* communicator);
/* The tokens of a rank, out of `tokens` tokens. layout: "ring", "zigzag", "striped", "ulysses". tokens_out, if not
 * null, has room for *count numbers: the token in row n of the shard, which is also its rotary position. */
ATTUNE_API int attune_shard_tokens(const char* layout, int32_t tokens, int32_t ranks, int32_t rank, int32_t* count,
                                   int64_t* tokens_out);
/* Copies a rank's rows from a tensor with all rows (s or t axis) into one with its own; back != 0: the other way,
 * leaving rows of other ranks unchanged. Floating dtypes; they may differ. */
ATTUNE_API int attune_shard_copy(const char* layout, int32_t ranks, int32_t rank, const attune_tensor* whole,
                                 const attune_tensor* shard, int back, void* stream);
/* The factory turns the name of an implementation ("dilated", "ring_dilated", "block_sparse", "nsa",
 * "multihead_dilated", "auto", ...: all in docs/modules.md) and some sizes into a problem line or a module's text, with
 * the reason. */
typedef struct attune_make_options {
  uint32_t size;               /* sizeof(attune_make_options) */
  int32_t dtype;               /* 0: f32 */
  int32_t batch, len;          /* 0: 1; len: tokens of the whole sequence over all ranks */
  int32_t heads, heads_kv;     /* heads_kv 0: heads */
  int32_t dim, dim_v;          /* dim 0: 64; dim_v 0: dim */
  int32_t embed;               /* modules; 0: heads * dim */
  int32_t causal, backward;    /* backward: the problem's pass; a module has both */
  int32_t ranks;               /* 0: 1 */
  int32_t block;               /* tokens per block of block lists; 0: 64 */
  float density;               /* kept fraction of blocks; 0: 0.25 if there are lists */
  const char* device;          /* null: "cpu" */
  const char *segments, *rates; /* dilated: "2048,4096" and "1,2"; null: derived from len */
  const char* pattern;         /* block lists; null: random, from density */
  const char* nsa;             /* "d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"; null: these, the paper's */
  int32_t rank;                /* modules over ranks: the rank whose shard it has, 0 ... ranks - 1 */
} attune_make_options;
typedef struct attune_choice attune_choice;
ATTUNE_API int attune_choose(const char* name, const attune_make_options* options, attune_choice** out);
ATTUNE_API void attune_choice_destroy(attune_choice* choice);
ATTUNE_API const char* attune_choice_name(const attune_choice* choice);    /* the result of auto */
ATTUNE_API int attune_choice_is_module(const attune_choice* choice);       /* 1: a module line; 0: a problem line */
ATTUNE_API const char* attune_choice_line(const attune_choice* choice);
ATTUNE_API const char* attune_choice_pattern(const attune_choice* choice); /* for a problem's block lists, or "" */
ATTUNE_API const char* attune_choice_why(const attune_choice* choice);

ATTUNE_API const char* attune_last_error(void); /* for this thread's last call: a message, or "" after success */
ATTUNE_API int attune_last_code(void);          /* what kind of failure that is, for programs: ATTUNE_INVALID, ... */
ATTUNE_API const char* attune_version(void);    /* "0.2.0" */

#ifdef __cplusplus
}
#endif
#endif
