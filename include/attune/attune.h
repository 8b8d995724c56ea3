/* attune: one operation, attend(q, k, v, mask) -> (out, lse). This is the whole C interface.
 * Every function that returns int returns 0, or 1 with a sentence in attune_last_error(). Zero is the default of every
 * field: clear a struct, set its size, then set what you mean. Fields and roles are only ever appended.
 * All functions may be called from any thread at any time; a plan may be run by many threads at once.
 *
 * Environment, read when a device is first used: ATTUNE_BACKEND (a backend by name; its refusal is an error),
 * ATTUNE_TUNED (a tuned file, or a folder of <device>.tsv), ATTUNE_LOG=1 (a line on stderr for every new plan),
 * ATTUNE_POOL=attune (freed memory of a GPU is kept here; default: driver, it is left to the driver's pool). */
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
  /* A forward reads out (f32) and lse, merges with them and writes them again. A backward adds to every gradient that
   * it is given, and dq, dk and dv are f32: with out and lse of a merged forward, the gradients of its parts are the
   * parts of its gradients. */
  ATTUNE_OPTION_ACCUMULATE = 1 << 5,
  /* k_new and v_new are written behind the used keys of the cache, all of them, then attended like the rest. No other
   * row of the cache is touched. Rows that have no place: on the CPU the call is refused before anything is written; on
   * a GPU they are left out (attune_check, or a cache object, refuses there too). */
  ATTUNE_OPTION_APPEND = 1 << 6,
  /* Of q and k_new, with append. The first 2 R dims turn, R being the width of rotary_cos and rotary_sin: pairs
   * (2i, 2i + 1) by the angle i. The row of those tables is where a token stands: a new key at its row of the cache,
   * padding included (used_k + n), and a query where the mask puts it among the keys, which with as many queries as new
   * keys is used_k + i too; flash_attn_with_kvcache counts the same way. With ATTUNE_ABSOLUTE: as positions say. */
  ATTUNE_OPTION_ROTARY = 1 << 7,
  ATTUNE_OPTION_ROTARY_HALF = 1 << 8, /* the same, with pairs (i, i + R) */
  ATTUNE_OPTION_DESCALE = 1 << 9,
  /* With a list of blocks, and not with bias: ATTUNE_BIAS has a number (f32) for every entry of it, at the place where
   * block_column has the entry, and is [blocks_bound]. It is added to the logits of the entry's pairs, after softcap;
   * its gradient is the sum over them, 0 where no entry is. Lists that share entries share their numbers. */
  ATTUNE_OPTION_BLOCK_BIAS = 1 << 10
};
#define ATTUNE_NO_LIMIT INT32_MAX /* a window side without end */

/* What is asked. Only what changes the choice or the code: a plan is found by these bytes. */
typedef struct attune_problem {
  uint32_t size; /* sizeof(attune_problem), as the caller was compiled */
  int32_t pass;
  int32_t dtype_q, dtype_kv, dtype_out; /* 0: that of q */
  int32_t dtype_grad;                   /* of dq, dk, dv; 0: that of q. Only in a backward */
  int32_t dtype_bias;                   /* 0: f32. Only with the option */
  int32_t batch, heads_q, heads_kv;     /* heads_kv 0: heads_q */
  int32_t len_q, len_k;                 /* upper bounds of one sequence */
  int32_t dim_qk, dim_v;                /* dim_v 0: dim_qk */
  int32_t mask, align, left, right;     /* left and right, both inclusive, only of a window */
  int32_t k_step, k_phase;              /* key j stands at j * k_step + k_phase; step 0: 1 */
  int32_t block_q, block_k, block_bound; /* block list: sizes and most entries; 0: none */
  uint32_t options;
  int32_t keys, page; /* page: keys a page, of paged keys */
  int32_t repro;
  int32_t precision;
  char variant[160]; /* "dilated rates=1,2 segments=2048,4096"; "" for none */
} attune_problem;

/* Memory. The fields down to byte_offset are those of a DLTensor, in its layout; dtype is DLPack's code, bits and
 * lanes. DLPack does not say what an axis means, so `axes` does, one letter an axis:
 *   b batch, p page | s sequence, t tokens of all sequences, q query | h head | d dim, k key, n number
 * The last of these (d, k, n) is contiguous. An axis may be left out, and is then 1. Strides are not negative. */
typedef struct attune_tensor {
  void* data; /* may be null where the tensor is empty */
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
  ATTUNE_K, ATTUNE_V,   /* bshd; ragged: thd; paged: pshd, s being the slots of a page */
  ATTUNE_OUT,           /* as q. An input of a backward */
  ATTUNE_LSE,           /* bsh f32, natural; optional unless accumulating. An input of a backward */
  ATTUNE_CU_Q,          /* n i32, batch + 1: first token of each sequence; with any key source */
  ATTUNE_CU_K,          /* n i32, batch + 1: of ragged keys */
  ATTUNE_USED_Q,        /* b i32: queries present */
  ATTUNE_USED_K,        /* b i32: keys present, before an append */
  ATTUNE_LEFT_PAD,      /* b i32: how many of the first keys are padding */
  ATTUNE_CACHE_INDEX,   /* b i32: which batch row of k and v */
  ATTUNE_PAGE_TABLE,    /* bn i32: pages of each sequence */
  ATTUNE_POSITIONS,     /* bn i64, n = 2: where query 0 and key 0 stand; absolute masks */
  ATTUNE_BLOCK_BEGIN,   /* bhn i32, n = query blocks + 1: first entry of each query block; b and h may be 1 */
  ATTUNE_BLOCK_COLUMN,  /* n i32: key blocks */
  ATTUNE_BLOCK_BEGIN_K, /* the same list by key block, optional in a backward: bhn i32, n = key blocks + 1 */
  ATTUNE_BLOCK_ROW_K,   /* n i32: query blocks */
  ATTUNE_SLOPES,        /* h f32: of ALiBi */
  ATTUNE_SINKS,         /* h f32 */
  ATTUNE_BIAS,          /* bqhk in any order; an axis that is 1 is broadcast */
  ATTUNE_SEED,          /* n i64, n = 2: seed and offset of dropout */
  ATTUNE_K_NEW, ATTUNE_V_NEW,           /* bshd: appended to the cache */
  ATTUNE_ROTARY_COS, ATTUNE_ROTARY_SIN, /* sd f32: [position, half of the rotated dims] */
  ATTUNE_DESCALE_Q, ATTUNE_DESCALE_K, ATTUNE_DESCALE_V, /* bh f32, h being heads of keys */
  ATTUNE_D_OUT,                         /* as out; backward, and so the rest */
  ATTUNE_D_LSE,                         /* as lse; optional */
  ATTUNE_DQ, ATTUNE_DK, ATTUNE_DV,      /* as q, k, v, in dtype_grad */
  ATTUNE_D_BIAS,                        /* f32, of the extents of bias; optional */
  ATTUNE_D_SINKS,                       /* h f32; optional */
  ATTUNE_VARIANT,                       /* ATTUNE_VARIANT + n: what the variant's page says */
  ATTUNE_D_VARIANT = ATTUNE_VARIANT + 24,
  ATTUNE_ROLES = ATTUNE_D_VARIANT + 24
};

/* What is given. Free to change on every call: no plan depends on it. */
typedef struct attune_args {
  uint32_t size;         /* sizeof(attune_args) */
  float scale;           /* 0: 1 / sqrt(dim_qk) */
  float softcap;         /* above 0 with the option, else 0 */
  float dropout;         /* 0 <= dropout < 1 with the option, else 0 */
  void* workspace;        /* 64-byte aligned, of at least the plan's bytes. Null with 0 bytes: the library lends one: */
  size_t workspace_bytes; /* on the CPU the calling thread keeps it, on a GPU it comes from the pool for the run */
  void* communicator;    /* of variants that span ranks */
  const attune_tensor* role[ATTUNE_ROLES]; /* null: not given. The last field: a newer library has more roles */
} attune_args;

/* The same line as in every table and message: "forward bf16 b2 h32/8 q4096 k4096 d128 causal".
 * Before parsing, out->size says how much room there is. */
ATTUNE_API int attune_problem_parse(const char* line, attune_problem* out);
ATTUNE_API int attune_problem_format(const attune_problem* problem, char* out, size_t capacity);

/* Finds or makes the plan for the device of q, checks the arguments, runs. Does not wait for the stream.
 * After an error in the problem or the arguments nothing has been written. */
ATTUNE_API int attune_call(const attune_problem* problem, const attune_args* args, void* stream);
/* Only the checks of a call, the integers inside tensors (lengths, page tables, block lists) among them. */
ATTUNE_API int attune_check(const attune_problem* problem, const attune_args* args);
/* What attune_call needs on a device; devices are named as in attune_plan_create. */
ATTUNE_API int attune_workspace(const attune_problem* problem, const char* device, size_t* bytes);

typedef struct attune_plan attune_plan; /* for those who want to hold it, or to ask why */
/* device: "cpu", "cpu:scalar" (this CPU without its vector units), "cuda:0", or one that need not be here ("h200");
 * null: "cpu". backend: by name, its refusal is an error; null: ATTUNE_BACKEND, else the planner's choice. */
ATTUNE_API int attune_plan_create(const attune_problem* problem, const char* device, const char* backend,
                                  attune_plan** out);
ATTUNE_API size_t attune_plan_workspace(const attune_plan* plan);       /* bytes */
ATTUNE_API const char* attune_plan_backend(const attune_plan* plan);    /* "cpu_forward" */
/* "cpu_forward: first in the list of backends that supports it", then a line for each backend that refused before. */
ATTUNE_API const char* attune_plan_why(const attune_plan* plan);
ATTUNE_API int attune_plan_run(const attune_plan* plan, const attune_args* args, void* stream);
ATTUNE_API void attune_plan_destroy(attune_plan* plan);

/* Threads of CPU plans made afterwards, those of attune_call included; 0: as many as this process may run on. */
ATTUNE_API int attune_set_threads(int threads);
ATTUNE_API int attune_threads(void);

/* The memory pool of a GPU ("cuda:0"). Buffers follow the order of streams: one may be used by work on the stream it
 * was allocated on and by what is ordered after that, and is freed on a stream that is ordered after all work on it.
 * Neither waits. A run on a GPU without a workspace borrows one here, also inside a capture, where it becomes part of
 * the graph; nothing else may be allocated there. The CPU ("cpu", null) has no pool: statistics, trim (of the calling
 * thread) and reset mean the buffers that are lent to threads. */
typedef struct attune_memory {
  uint32_t size;                     /* sizeof(attune_memory) */
  uint32_t keeps;                    /* 1: freed blocks are kept for the next buffer; 0: they go to the driver */
  uint64_t live_buffers, live_bytes; /* allocated and not yet freed; bytes as asked for */
  uint64_t block_bytes;              /* of the blocks they lie in: what is above live_bytes is lost to rounding */
  uint64_t free_blocks, free_bytes;  /* kept for whoever comes next */
  uint64_t held_bytes;               /* from the system, by the driver, for all of it */
  uint64_t high_buffers, high_bytes; /* of the live ones, since attune_memory_reset */
  uint64_t high_reserved_bytes;      /* of block_bytes + free_bytes, since then */
  uint64_t hits, misses;             /* allocations out of kept blocks, and by the driver */
  uint64_t crossed, waited;          /* hits with a block of another stream; of them, those that wait for that stream */
  uint64_t given_back;               /* blocks, to the driver */
  uint64_t full;                     /* times that the driver had no memory left */
  uint64_t graph_buffers;            /* borrowed inside captures */
} attune_memory;
ATTUNE_API int attune_memory_allocate(const char* device, size_t bytes, void* stream, void** out);
ATTUNE_API int attune_memory_free(const char* device, void* data, void* stream); /* data may be null */
/* Waits for the device, then gives free blocks back until at most `keep` bytes are left, live ones included. */
ATTUNE_API int attune_memory_trim(const char* device, size_t keep);
ATTUNE_API int attune_memory_reset(const char* device); /* high marks begin again with what is live now */
ATTUNE_API int attune_memory_statistics(const char* device, attune_memory* out);

/* A cache of keys and values that knows the length of each of its sequences: it finds the place of new keys, hands out
 * pages and takes them back, and refuses what does not fit before anything is written. One thread at a time, and all
 * its calls on one stream, or ordered as if they were. */
typedef struct attune_cache_options {
  uint32_t size;                 /* sizeof(attune_cache_options) */
  int32_t dtype;                 /* of keys and values */
  int32_t heads, dim_qk, dim_v;  /* heads of keys; dim_v 0: dim_qk */
  int32_t sequences;             /* the most at once; they are numbered from 0 and begin empty */
  int32_t capacity;              /* the most keys of a sequence */
  int32_t page;                  /* keys a page; 0: no pages, a piece of `capacity` keys for each sequence */
  int32_t pages;                 /* in the pool, for all sequences; 0: as many as they can ever need */
  const char* device;            /* "cpu", "cuda:0"; null: "cpu" */
  void *k, *v;                   /* compact memory of the caller, bshd or pshd, or both null: the library allocates */
} attune_cache_options;
typedef struct attune_cache attune_cache;
ATTUNE_API int attune_cache_create(const attune_cache_options* options, attune_cache** out);
ATTUNE_API void attune_cache_destroy(attune_cache* cache); /* when the stream is done with it */
/* attune_call with these sequences of the cache, batch of them, each once (null: 0, 1, ...). The cache gives k, v,
 * used_k, cache_index and page_table, which must not be set; and keys, page and, where it is 0, len_k (its capacity).
 * With ATTUNE_OPTION_APPEND the sequences are longer afterwards; q may have no rows, which only appends. After an error
 * they are as before. */
ATTUNE_API int attune_cache_attend(attune_cache* cache, const attune_problem* problem, const attune_args* args,
                                   const int32_t* sequences, void* stream);
/* Shorter: forgets the last keys, and with 0 all; pages that are not needed any more serve others at once. Longer: the
 * caller fills the new rows. */
ATTUNE_API int attune_cache_resize(attune_cache* cache, int32_t sequence, int32_t length);
ATTUNE_API int32_t attune_cache_length(const attune_cache* cache, int32_t sequence); /* -1: an error */
ATTUNE_API int32_t attune_cache_free_pages(const attune_cache* cache);               /* 0 without pages */
/* The pages of a sequence, as many as its length needs, on the host; valid until the cache changes. Null without. */
ATTUNE_API const int32_t* attune_cache_pages(const attune_cache* cache, int32_t sequence);
ATTUNE_API int attune_cache_view(const attune_cache* cache, int role, attune_tensor* out); /* ATTUNE_K or ATTUNE_V */

/* Block lists, built where the data lives, in the order of the stream and without reading anything back: ascending, the
 * same bits on every device. Density is the kept fraction of the blocks that the mask of the problem (causal, window)
 * shows: counts say it, and what the mask hides is never listed. */
typedef struct attune_blocks {
  uint32_t size;             /* sizeof(attune_blocks) */
  const char* pattern;       /* "random density=0.1 seed=7": docs/block_sparse.md; or */
  const attune_tensor* mask; /* bhqk, a byte (bool or 8 bits) for each block, not 0: active; b and h may be 1; or */
                             /* neither: block_begin and block_column are there, and the list by key block is made of */
                             /* them, or they are counted, or both */
  int64_t* counts;           /* ATTUNE_BLOCK_COUNTS numbers where the lists are; optional */
} attune_blocks;
enum { /* counts of all lists together */
  ATTUNE_BLOCKS_ACTIVE,  /* entries; of lists that were there, those that the mask shows */
  ATTUNE_BLOCKS_SHOWN,   /* blocks of which the mask shows any pair: density is active / shown */
  ATTUNE_BLOCKS_LONGEST, /* entries of the longest row */
  ATTUNE_BLOCKS_DROPPED, /* entries beyond block_bound; of a pattern 0 with the bound below */
  ATTUNE_BLOCK_COUNTS
};
/* The most entries that the pattern makes, for block_bound. The problem has block_q and block_k; batch and heads are
 * those of block_begin, 1 or the problem's. full: every sequence is as long as len_q and len_k say. */
ATTUNE_API int attune_blocks_bound(const attune_problem* problem, const char* pattern, int32_t batch, int32_t heads,
                                   int full, int64_t* bound);
/* Of the roles of an attention with these lists: writes block_begin, block_column and, where they are given,
 * block_begin_k and block_row_k; reads lengths and positions; q and k need not be given. */
ATTUNE_API int attune_blocks_build(const attune_problem* problem, const attune_args* args, const attune_blocks* blocks,
                                   void* stream);
/* Waits for the stream and reads counts that are on a device. */
ATTUNE_API int attune_blocks_counts(const char* device, const int64_t* counts, int64_t* out, void* stream);

/* Modules: layers with parameters, a forward and a backward. A module is one line of text, docs/modules.md:
 *   "llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal"
 *   "multihead f32 b2 s512 e768 h12 norm=1 | causal : dilated mode=longnet norm=lse rates=1,2 segments=128,256"
 * Sizes are fixed when it is made. Its attention goes by tuned rules and the list of backends; ATTUNE_BACKEND is not
 * for it. Calls of one module from many threads are safe while nobody changes its parameters or gradients. */
typedef struct attune_module attune_module;
typedef struct attune_module_options {
  uint32_t size;               /* sizeof(attune_module_options) */
  const char* device;          /* "cpu", "cuda:0"; null: "cpu" */
  const attune_module* shares; /* uses the parameters and gradients of this one, of other sizes; null: its own */
} attune_module_options;
typedef struct attune_module_sizes {
  uint32_t size;         /* sizeof(attune_module_sizes) */
  int32_t parameters;    /* how many have a name */
  uint64_t parameter_bytes, gradient_bytes;
  uint64_t tape;         /* what a backward needs of a forward: bytes */
  uint64_t forward;      /* workspace of a forward with a tape, */
  uint64_t forward_only; /* of one without, */
  uint64_t backward;     /* and of a backward */
} attune_module_sizes;
typedef struct attune_module_args {
  uint32_t size;               /* sizeof(attune_module_args) */
  int32_t add;                 /* 1: parameter gradients are added to; 0: overwritten */
  const attune_tensor* x;      /* bsd, compact, 16-byte aligned, as all below */
  const attune_tensor* memory; /* of cross-attention */
  const attune_tensor* out;    /* of a forward */
  const attune_tensor* d_out;  /* of a backward, and so: */
  const attune_tensor *dx, *d_memory; /* null: not wanted */
  const attune_tensor* seed;   /* n i64, n = 2, of dropout: the same in both passes; null: nothing is dropped */
  void* tape;                  /* 64-byte aligned, sizes.tape bytes, unchanged between the passes; null: no backward */
  void* workspace;             /* 64-byte aligned, of at least the bytes above; null: the library lends one */
  size_t workspace_bytes;
  void* communicator;          /* of variants that span ranks */
} attune_module_args;
ATTUNE_API int attune_module_create(const char* text, const attune_module_options* options, attune_module** out);
ATTUNE_API void attune_module_destroy(attune_module* module); /* when the stream is done with it */
ATTUNE_API const char* attune_module_text(const attune_module* module); /* its line, in the one spelling */
ATTUNE_API const char* attune_module_why(const attune_module* module);  /* the backends of its attention, and why */
ATTUNE_API int attune_module_measure(const attune_module* module, attune_module_sizes* out);
/* The n-th parameter's name, null beyond the last. Order is that of files. */
ATTUNE_API const char* attune_module_parameter_name(const attune_module* module, int32_t n);
/* Where a parameter lies, to be read and written; and its f32 gradient, which is 0 until a backward. The first call for
 * a gradient, or the first backward, allocates all of them: not inside a capture. */
ATTUNE_API int attune_module_parameter(const attune_module* module, const char* name, attune_tensor* out);
ATTUNE_API int attune_module_gradient(const attune_module* module, const char* name, attune_tensor* out);
/* Memory for a tape, the module's own, for those who have one forward and its backward at a time. The first call
 * allocates it. */
ATTUNE_API int attune_module_tape(const attune_module* module, void** out);
/* Every parameter from or to a safetensors file, there named prefix + name (null: no prefix). convert: a file in
 * another floating dtype is taken too. A file that does not fit changes nothing. */
ATTUNE_API int attune_module_load(attune_module* module, const char* path, const char* prefix, int convert);
ATTUNE_API int attune_module_save(const attune_module* module, const char* path, const char* prefix);
ATTUNE_API int attune_module_forward(const attune_module* module, const attune_module_args* args, void* stream);
ATTUNE_API int attune_module_backward(const attune_module* module, const attune_module_args* args, void* stream);

/* A cache of native sparse attention (docs/nsa.md): the raw streams of its three branches and the compressed one, of
 * each of its sequences. New tokens go into the raw streams; every d of them make a compressed token, out of the last
 * l; so prefill, chunks of one and single tokens give the same streams and select the same blocks. (Of blocks whose
 * scores differ in the last bits alone, with ATTUNE_REPRO_BATCH in the problem: docs/nsa.md.) One thread at a time, and
 * all its calls on one stream, or ordered as if they were. */
typedef struct attune_nsa_cache_options {
  uint32_t size;                /* sizeof(attune_nsa_cache_options) */
  int32_t dtype;                /* of keys and values */
  int32_t heads, dim_qk, dim_v; /* heads of keys; dim_v 0: dim_qk */
  int32_t sequences;            /* the most at once; they are numbered from 0 and begin empty */
  int32_t capacity;             /* the most raw tokens of a sequence */
  const char* variant;          /* "nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512" */
  const char* device;           /* "cpu", "cuda:0"; null: "cpu" */
} attune_nsa_cache_options;
typedef struct attune_nsa_cache attune_nsa_cache;
enum { /* its streams: bshd, b being sequences and s capacity, or compressed tokens of that many */
  ATTUNE_NSA_K, ATTUNE_NSA_V, /* of the compression branch */
  ATTUNE_NSA_K_SELECT, ATTUNE_NSA_V_SELECT,
  ATTUNE_NSA_K_WINDOW, ATTUNE_NSA_V_WINDOW, /* with w=0 there are none */
  ATTUNE_NSA_K_COMPRESSED, ATTUNE_NSA_V_COMPRESSED,
  ATTUNE_NSA_STREAMS
};
ATTUNE_API int attune_nsa_cache_create(const attune_nsa_cache_options* options, attune_nsa_cache** out);
ATTUNE_API void attune_nsa_cache_destroy(attune_nsa_cache* cache); /* when the stream is done with it */
/* Appends, compresses and attends, with these sequences of the cache, batch of them, each once (null: 0, 1, ...).
 * Roles: q and out; the new tokens of the branches, bshd: k_new and v_new, and of the variant's tensors 0 ... 3; gates
 * (4) and the weights of phi (5 ... 14), as in a prefill; tensors 15 ... 18 where they are wanted. Queries are the last
 * tokens of their sequences. Without q it only appends; without new tokens it only attends. The problem's variant may
 * be left out, and so may len_k (the capacity). After an error the sequences are as before. */
ATTUNE_API int attune_nsa_cache_attend(attune_nsa_cache* cache, const attune_problem* problem, const attune_args* args,
                                       const int32_t* sequences, void* stream);
/* Forgets the last tokens, and with 0 all. */
ATTUNE_API int attune_nsa_cache_shorten(attune_nsa_cache* cache, int32_t sequence, int32_t length);
ATTUNE_API int32_t attune_nsa_cache_length(const attune_nsa_cache* cache, int32_t sequence); /* raw; -1: an error */
ATTUNE_API int32_t attune_nsa_cache_compressed(const attune_nsa_cache* cache, int32_t sequence); /* tokens; likewise */
ATTUNE_API int attune_nsa_cache_view(const attune_nsa_cache* cache, int stream, attune_tensor* out);

/* Ranks: docs/ring.md. A communicator is one rank's end of a group, for variants that span ranks (args.communicator).
 * One thread at a time. Every wait has a limit; after an error the communicator stays broken, and says why. */
typedef struct attune_communicator attune_communicator;
/* Ranks as threads of this process: `out` has room for `ranks` of them, each for one thread. */
ATTUNE_API int attune_ranks_create(int32_t ranks, attune_communicator** out);
/* A rank of MPI, through libattune_mpi: comm is an MPI_Comm*, null for MPI_COMM_WORLD. Starts MPI where nobody did. */
ATTUNE_API int attune_mpi_create(const void* comm, attune_communicator** out);
/* A rank of NCCL on a GPU of its own ("cuda:0"). Rank 0 makes the id, the caller brings it to the others. */
#define ATTUNE_NCCL_ID 128
ATTUNE_API int attune_nccl_id(void* id); /* ATTUNE_NCCL_ID bytes */
ATTUNE_API int attune_nccl_create(const void* id, int32_t rank, int32_t ranks, const char* device,
                                  attune_communicator** out);
/* Functions of the caller's instead: torch.distributed, a network of its own. Between two ranks messages keep their
 * order; a wait that is over its limit, or a peer that is gone, is an answer that is not 0. */
typedef struct attune_transfer {
  int32_t peer;
  int32_t receive; /* 0: send */
  void* data;      /* the transport's until finish */
  size_t bytes;
} attune_transfer;
typedef struct attune_transport {
  uint32_t size; /* sizeof(attune_transport) */
  int32_t rank, ranks;
  int32_t gpu; /* 1: takes addresses of a GPU, in the order of the stream; 0: the library stages them by the host */
  void* self;
  /* Begins all of them and returns. device: the GPU, -1: memory of the host. */
  int (*start)(void* self, const attune_transfer* transfers, int32_t count, int32_t device, void* stream,
               void** ticket);
  int (*finish)(void* self, void* ticket, double seconds, void* stream); /* once for each start */
  void (*fail)(void* self, const char* why); /* this rank stops: what was started touches no memory any more; or null */
  const char* (*error)(void* self);          /* why an answer was not 0; or null */
  void (*destroy)(void* self);               /* or null */
} attune_transport;
ATTUNE_API int attune_transport_create(const attune_transport* transport, attune_communicator** out);
ATTUNE_API int attune_communicator_limit(attune_communicator* communicator, double seconds); /* of a wait; 60 */
typedef struct attune_traffic {
  uint32_t size; /* sizeof(attune_traffic) */
  int32_t rank, ranks;
  uint32_t reserved;
  uint64_t sent, received, messages; /* bytes, and messages sent, so far */
} attune_traffic;
ATTUNE_API int attune_communicator_traffic(const attune_communicator* communicator, attune_traffic* out);
ATTUNE_API int attune_communicator_barrier(attune_communicator* communicator);
ATTUNE_API void attune_communicator_destroy(attune_communicator* communicator);
/* Which of `tokens` tokens a rank has. layout: "ring", "zigzag", "striped", "ulysses". tokens_out, where not null, has
 * room for *count of them: what stands in row n of the shard, and so its position for a rotary. */
ATTUNE_API int attune_shard_tokens(const char* layout, int32_t tokens, int32_t ranks, int32_t rank, int32_t* count,
                                   int64_t* tokens_out);
/* The rows of a rank, out of a tensor with all of them (s or t axis) into one with its own; back != 0: the other way,
 * where rows of other ranks stay as they are. Floating dtypes; they may differ. */
ATTUNE_API int attune_shard_copy(const char* layout, int32_t ranks, int32_t rank, const attune_tensor* whole,
                                 const attune_tensor* shard, int back, void* stream);
/* The factory: the name of an implementation ("dilated", "ring_dilated", "block_sparse", "nsa", "multihead_dilated",
 * "auto", ...: docs/modules.md has them all) and some sizes become a problem line or a module's text, and why. */
typedef struct attune_make_options {
  uint32_t size;               /* sizeof(attune_make_options) */
  int32_t dtype;               /* 0: f32 */
  int32_t batch, len;          /* 0: 1; tokens of the whole sequence, whatever a rank has of it */
  int32_t heads, heads_kv;     /* heads_kv 0: heads */
  int32_t dim, dim_v;          /* dim 0: 64; dim_v 0: dim */
  int32_t embed;               /* of modules; 0: heads * dim */
  int32_t causal, backward;    /* backward: the problem's pass; a module has both */
  int32_t ranks;               /* 0: 1 */
  int32_t block;               /* tokens of a block, of block lists; 0: 64 */
  float density;               /* kept fraction of blocks; 0: 0.25 where there are lists */
  const char* device;          /* null: "cpu" */
  const char *segments, *rates; /* "2048,4096" and "1,2", of dilated; null: by len */
  const char* pattern;         /* of block lists; null: random, by density */
  const char* nsa;             /* "d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"; null: this, the paper's */
  int32_t rank;                /* of modules over ranks: whose shard it has. 0 ... ranks - 1 */
} attune_make_options;
typedef struct attune_choice attune_choice;
ATTUNE_API int attune_choose(const char* name, const attune_make_options* options, attune_choice** out);
ATTUNE_API void attune_choice_destroy(attune_choice* choice);
ATTUNE_API const char* attune_choice_name(const attune_choice* choice);    /* what auto became */
ATTUNE_API int attune_choice_is_module(const attune_choice* choice);       /* 1: of the line below, else a problem's */
ATTUNE_API const char* attune_choice_line(const attune_choice* choice);
ATTUNE_API const char* attune_choice_pattern(const attune_choice* choice); /* of a problem's block lists, or "" */
ATTUNE_API const char* attune_choice_why(const attune_choice* choice);

ATTUNE_API const char* attune_last_error(void); /* of this thread's last call; a sentence; "" after a success */
ATTUNE_API const char* attune_version(void);    /* "0.2.0" */

#ifdef __cplusplus
}
#endif
#endif
