// Batch scan on tensor cores: 8-bit products of unpacked keyword codes and integer queries, with a fused test.
//
// Built at run time with -D RBE_N (dimension), RBE_P (keyword planes), RBE_WIDE (queries beyond ±127) and one of
// RBE_KERNEL = 1 (mma.sync, any card since Ampere), 2 (wgmma, Hopper) or 3 (wgmma, 8-bit floats). tensorcore.py has the
// layouts and the reasons.
//
// A warp owns ROWS consecutive keywords; lane (g, t) = (lane / 4, lane % 4) feeds rows g·PER … g·PER + PER − 1 and a
// quarter of every 32 dimensions. The keyword value is 2·u − (2^P − 1) with u in 0 … 2^P − 1, so q·k = 2·(u·q) − (2^P − 1)·Σq: kernels 1 and 2 compute u·q, never a sign; kernel 3 looks signs up.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef RBE_MT
#define RBE_MT 4
#endif
constexpr int N = RBE_N, P = RBE_P, MT = RBE_MT;
constexpr int BLOCKS32 = N / 32;       // 32-dimension blocks of a plane
constexpr int PER = 2 * MT;            // rows a lane feeds
constexpr int ROWS = 8 * PER;          // rows a warp owns
constexpr int TOP = (1 << P) - 1;

struct Scan {
  const u32* words;      // [P · BLOCKS32, stride]
  i64 stride, begin, end, base;
  const u32* mask;       // a bit a keyword of this shard, or null
  const uint4* queries;  // unpacked in the order the tensor cores read them
  const int* floors;     // kernel 1: [buckets, width], minus the least u·q that can pass at a norm of that bucket
  const void* slopes;    // kernels 2, 3: [width], minus the threshold of q·k / ‖k‖, rounded down (see tensorcore.py)
  const int* centres;    // kernel 2: [width], what a sum is more than a multiple of q·k
  const i64* limits;     // [width, 3]: pass when q·k·|q·k| · limits[1] >= limits[0] · ‖k‖² + limits[2]
  const int* sums;       // [width]: Σq
  u64* counts;           // [width]: 64 bits, as more than 2³¹ keywords may pass a bad threshold
  i64* positions;        // [width, room]
  int* dots;             // [width, room]
  int* norms;            // [width, room]
  int room, tiles, width, shift, kept;  // kept: where the kept pairs begin in shared memory, in bytes
};

__device__ __forceinline__ u32 rotate(u32 x, int by) { return __funnelshift_r(x, x, by); }

// The words of PER consecutive rows of one stream.
__device__ __forceinline__ void load_rows(u32 (&out)[PER], const u32* p) {
#pragma unroll
  for (int i = 0; i < PER; i += 4) {
    uint4 v = __ldg((const uint4*)(p + i));
    out[i] = v.x; out[i + 1] = v.y; out[i + 2] = v.z; out[i + 3] = v.w;
  }
}

#if RBE_KERNEL == 3
// The signed values of four dimensions as four 8-bit floats, looked up with the permute instruction: nibble b of the
// selector is u of dimension 16·(t / 2) + 4b + 2·(t % 2) + 1 − HALF.
template <int HALF>
__device__ __forceinline__ u32 unpack(const u32 (&w)[P], int t) {
  const int s = (t >> 1) * 16 + (t & 1) * 2;
  if (P == 1) return __byte_perm(0x0181u, 0, (w[0] >> (s + 1 - HALF)) & 0x1111u);
  if (P == 2) return __byte_perm(0x03018183u, 0, (HALF == 0 ? w[0] >> s : rotate(w[1], (s + 31) & 31)) & 0x3333u);
  u32 u = 0;
#pragma unroll
  for (int p = 0; p < P; p++) u = 2 * u + ((w[p] >> (s + 1 - HALF)) & 0x1111u);
  return __byte_perm(0x81838587u, 0x07050301u, u);
}
#else
// u of four dimensions as four bytes, times 2^LIFT: for half 0 the dimensions 8b + 2t + 1 (b = byte), for half 1 the
// dimensions 8b + 2t. Kernel 2 wants u at the top of the byte, so that sums are fine enough to compare with a product.
constexpr int LIFT = RBE_KERNEL == 2 ? 8 - P : 0;
template <int HALF>
__device__ __forceinline__ u32 unpack(const u32 (&w)[P], int t) {
  if (P == 2) return rotate(w[HALF], (2 * t + 32 - HALF - LIFT) & 31) & (0x03030303u << LIFT);
  u32 u = 0;
#pragma unroll
  for (int p = 0; p < P; p++) u = 2 * u + ((w[p] >> (2 * t + 1 - HALF)) & 0x01010101u);
  return u << LIFT;
}
#endif

// The planes of one 32-dimension block, dimension d at bit d.
__device__ __forceinline__ void planes_of(u32 (&out)[P], const u32 (&w)[P]) {
  if (P == 2) {
    out[0] = (w[0] & 0xAAAAAAAAu) | (w[1] & 0x55555555u);
    out[1] = rotate((w[0] & 0x55555555u) | (w[1] & 0xAAAAAAAAu), 31);
  } else {
#pragma unroll
    for (int p = 0; p < P; p++) out[p] = w[p];
  }
}

// The part of ‖k‖² that varies: Σ over plane pairs of 2^(2P−i−j) · popcount(p_i XOR p_j); ‖k‖² = N·TOP² − that.
__device__ __forceinline__ int spread_of(const u32 (&w)[P]) {
  u32 x[P];
  planes_of(x, w);
  int s = 0;
#pragma unroll
  for (int i = 0; i < P; i++)
#pragma unroll
    for (int j = i + 1; j < P; j++) s += __popc(x[i] ^ x[j]) << (2 * P - i - j);
  return s;
}

__device__ int norm_at(const Scan& a, i64 row) {
  int s = 0;
#pragma unroll
  for (int k = 0; k < BLOCKS32; k++) {
    u32 w[P];
#pragma unroll
    for (int p = 0; p < P; p++) w[p] = a.words[(p * BLOCKS32 + k) * a.stride + row];
    s += spread_of(w);
  }
  return N * TOP * TOP - s;
}

// The exact test, the mask and the append; only for the few pairs that the floor lets through.
__device__ __noinline__ void offer(const Scan& a, i64 row, int query, int dot) {
  if (row < a.begin || row >= a.end) return;
  if (a.mask && !(a.mask[row >> 5] >> (row & 31) & 1u)) return;
  int norm = norm_at(a, row);
  i64 square = (i64)dot * (dot < 0 ? -dot : dot);
  const i64* limit = a.limits + 3 * query;
  if (square * limit[1] < limit[0] * norm + limit[2]) return;
  u64 slot = atomicAdd(a.counts + query, 1ull);
  if (slot >= (u64)a.room) return;
  i64 at = (i64)query * a.room + (i64)slot;
  a.positions[at] = a.base + row;
  a.dots[at] = dot;
  a.norms[at] = norm;
}

#if RBE_KERNEL > 1
// Pairs of one warp that passed the first test. `offer` waits for memory three times, about 2 µs, and everything of its
// warpgroup with it; so pairs are kept in shared memory until the lanes have one each. What does not fit is offered at
// once.
constexpr int KEPT = 96;
struct Kept { u32 count, rows[KEPT]; int queries[KEPT], dots[KEPT]; };

// Behind everything else in shared memory; computed where it is used, which saves a register.
__device__ __forceinline__ Kept& kept_pairs(const Scan& a) {
  extern __shared__ __align__(128) uint4 shared[];
  return ((Kept*)((char*)shared + a.kept))[threadIdx.x >> 5];
}

__device__ __forceinline__ void keep(const Scan& a, i64 row, int query, int dot) {
  Kept& kept = kept_pairs(a);
  const u32 slot = atomicAdd(&kept.count, 1u);
  if (slot < KEPT) { kept.rows[slot] = (u32)row; kept.queries[slot] = query; kept.dots[slot] = dot; }
  else offer(a, row, query, dot);
}

__device__ __noinline__ void offer_kept(const Scan& a, int lane) {
  Kept& kept = kept_pairs(a);
  __syncwarp();
  const u32 count = min(kept.count, (u32)KEPT);
  for (u32 i = lane; i < count; i += 32) offer(a, kept.rows[i], kept.queries[i], kept.dots[i]);
  __syncwarp();
  if (lane == 0) kept.count = 0;
  __syncwarp();
}
#endif

// Unpack the warp's rows from `row0` into A fragments. The four lanes of a row group share the work of its norms: lane t
// gets spread[i] of rows g·PER + 4i + t.
__device__ __forceinline__ void feed(const Scan& a, u32 (&A)[MT][BLOCKS32][4], int (&spread)[PER / 4], i64 row0, int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < PER / 4; i++) spread[i] = 0;
#pragma unroll
  for (int k = 0; k < BLOCKS32; k++) {
    u32 w[P][PER];
#pragma unroll
    for (int p = 0; p < P; p++) load_rows(w[p], a.words + (p * BLOCKS32 + k) * a.stride + row0 + g * PER);
#pragma unroll
    for (int i = 0; i < PER; i++) {
      u32 x[P];
#pragma unroll
      for (int p = 0; p < P; p++) x[p] = w[p][i];
      A[i >> 1][k][i & 1] = unpack<0>(x, t);
      A[i >> 1][k][2 + (i & 1)] = unpack<1>(x, t);
    }
    if (P > 1) {
#pragma unroll
      for (int i = 0; i < PER / 4; i++) {
        u32 x[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
          u32 lo = t & 1 ? w[p][4 * i + 1] : w[p][4 * i], hi = t & 1 ? w[p][4 * i + 3] : w[p][4 * i + 2];
          x[p] = t & 2 ? hi : lo;
        }
        spread[i] += spread_of(x);
      }
    }
  }
}

#if RBE_KERNEL > 1
// Bring the words of the warp's next rows to the cache. The four lanes of a row group read the same ones.
__device__ __forceinline__ void fetch_ahead(const Scan& a, i64 first, i64 row0, int lane) {
  if (first >= a.end) return;
#pragma unroll
  for (int s = lane & 3; s < P * BLOCKS32; s += 4)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(a.words + s * a.stride + row0 + (lane >> 2) * PER));
}
#endif

#if RBE_KERNEL == 1
constexpr int STEPS = RBE_WIDE ? 2 * BLOCKS32 : BLOCKS32;  // products a tile: (2u)·⌊q/2⌋ then u·(q mod 2) when wide

__device__ __forceinline__ void mma(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, int c0, int c1, int c2, int c3) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}

extern "C" __global__ void __launch_bounds__(RBE_THREADS, RBE_MINBLOCKS) scan(const __grid_constant__ Scan a) {
  extern __shared__ uint4 shared[];
  const int fragments = a.tiles * STEPS * 16;  // uint4 each
  int* floors = (int*)(shared + fragments);
  for (int i = threadIdx.x; i < fragments; i += RBE_THREADS) shared[i] = a.queries[i];
  const int buckets = ((N * (TOP * TOP - 1)) >> a.shift) + 1;
  for (int i = threadIdx.x; i < buckets * a.width; i += RBE_THREADS) floors[i] = a.floors[i];
  __syncthreads();
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const i64 warps = (i64)gridDim.x * (RBE_THREADS / 32);
  const i64 warp = (i64)blockIdx.x * (RBE_THREADS / 32) + (threadIdx.x >> 5);
  for (i64 row0 = a.begin / ROWS * ROWS + warp * ROWS; row0 < a.end; row0 += warps * ROWS) {
    u32 A[MT][BLOCKS32][4];
    int spread[PER / 4];
    feed(a, A, spread, row0, lane);
    int most = spread[0];
#pragma unroll
    for (int i = 1; i < PER / 4; i++) most = max(most, spread[i]);
    most = __reduce_max_sync(~0u, most);  // the least norm of the warp's rows picks the floors
    const int bucket = P == 1 ? 0 : (N * (TOP * TOP - 1) - most) >> a.shift;
    const int* floor = floors + bucket * a.width + 2 * t;
    for (int j = 0; j < a.tiles; j++) {
      const int2 f = *(const int2*)(floor + 8 * j);
      int c[MT][4];
#pragma unroll
      for (int s = 0; s < STEPS; s += 2) {
        const uint4 b = shared[(j * (STEPS / 2) + s / 2) * 32 + lane];
#pragma unroll
        for (int m = 0; m < MT; m++) {
          if (RBE_WIDE && s < BLOCKS32) {
            u32 d0[4], d1[4];
#pragma unroll
            for (int e = 0; e < 4; e++) { d0[e] = A[m][s % BLOCKS32][e] << 1; d1[e] = A[m][s % BLOCKS32 + 1][e] << 1; }
            if (s == 0) mma(c[m], d0, b.x, b.y, f.x, f.y, f.x, f.y);
            else mma(c[m], d0, b.x, b.y, c[m][0], c[m][1], c[m][2], c[m][3]);
            mma(c[m], d1, b.z, b.w, c[m][0], c[m][1], c[m][2], c[m][3]);
          } else {
            if (s == 0) mma(c[m], A[m][s % BLOCKS32], b.x, b.y, f.x, f.y, f.x, f.y);
            else mma(c[m], A[m][s % BLOCKS32], b.x, b.y, c[m][0], c[m][1], c[m][2], c[m][3]);
            mma(c[m], A[m][s % BLOCKS32 + 1], b.z, b.w, c[m][0], c[m][1], c[m][2], c[m][3]);
          }
        }
      }
      int below = -1;  // stays negative while every sum is below its floor
#pragma unroll
      for (int m = 0; m < MT; m++) below &= c[m][0] & c[m][1] & c[m][2] & c[m][3];
      if (below >= 0) {
#pragma unroll 1
        for (int i = 0; i < 4 * MT; i++) {
          int sum = c[0][0];
#pragma unroll
          for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum = i == 4 * m + e ? c[m][e] : sum;
          const int query = 8 * j + 2 * t + (i & 1);
          if (sum >= 0)
            offer(a, row0 + g * PER + 2 * (i >> 2) + (i >> 1 & 1), query,
                  2 * (sum - (i & 1 ? f.y : f.x)) - TOP * a.sums[query]);
        }
      }
    }
  }
}
#endif

#if RBE_KERNEL > 1
// wgmma. One warpgroup multiplies 4·ROWS keywords by chunks of CHUNK queries; its accumulators live in registers.
__device__ __forceinline__ u64 describe(u32 address) {
  // K-major, no swizzle: 8×16-byte cores, the two of a k-step 128 bytes apart, the next eight queries 256 bytes on
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

__device__ __forceinline__ float root_of(int spread) {  // a little less than ‖k‖
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"((float)(N * TOP * TOP - spread)));
  return root * 0.9999f;
}
#endif

#if RBE_KERNEL == 2
constexpr int CHUNK = 32, REGS = 16, STEPS = RBE_WIDE ? 2 * BLOCKS32 : BLOCKS32;
constexpr int UNIT = LIFT - RBE_WIDE;  // a sum is 2^UNIT · u·q
constexpr int FINE = 4;                // norms are compared in units of 1 / FINE

__device__ __forceinline__ void wgmma(int (&d)[16], const u32 (&a)[4], u64 b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19}, %20, p;}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

extern "C" __global__ void __launch_bounds__(RBE_THREADS, RBE_MINBLOCKS) scan(const __grid_constant__ Scan a) {
  extern __shared__ __align__(128) uint4 shared[];
  const int chunks = a.width / CHUNK;
  const int fragments = chunks * STEPS * CHUNK * 2;  // uint4 each: 32 bytes a query and step
  int2* tests = (int2*)(shared + fragments);         // (slope, minus centre) of each query
  if ((threadIdx.x & 31) == 0) kept_pairs(a).count = 0;
  for (int i = threadIdx.x; i < fragments; i += RBE_THREADS) shared[i] = a.queries[i];
  for (int i = threadIdx.x; i < a.width; i += RBE_THREADS) tests[i] = make_int2(((const int*)a.slopes)[i], -a.centres[i]);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads shared memory through the async proxy
  __syncthreads();
  const u32 smem = (u32)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5 & 3;
  const i64 groups = (i64)gridDim.x * (RBE_THREADS / 128);
  const i64 group = (i64)blockIdx.x * (RBE_THREADS / 128) + (threadIdx.x >> 7);
  for (i64 first = a.begin / (4 * ROWS) * (4 * ROWS) + group * 4 * ROWS; first < a.end; first += groups * 4 * ROWS) {
    const i64 row0 = first + warp * ROWS;
    u32 A[MT][BLOCKS32][4];
    int spread[PER / 4], root[PER];
    feed(a, A, spread, row0, lane);
    fetch_ahead(a, first + groups * 4 * ROWS, row0 + groups * 4 * ROWS, lane);
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
      const int mine = (int)(root_of(spread[i]) * FINE);
#pragma unroll
      for (int s = 0; s < 4; s++) root[4 * i + s] = __shfl_sync(~0u, mine, (lane & 28) | s);
    }
#pragma unroll 1
    for (int j = 0; j < chunks; j++) {
      int c[MT][REGS];
      u32 half[MT][RBE_WIDE ? BLOCKS32 : 1][4];
      if (RBE_WIDE) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int s = 0; s < (RBE_WIDE ? BLOCKS32 : 1); s++)
#pragma unroll
            for (int e = 0; e < 4; e++) half[m][s][e] = A[m][s][e] >> 1;
      }
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          const u64 b = describe(smem + (j * STEPS + s) * CHUNK * 32);
          if (s < BLOCKS32) wgmma(c[m], A[m][s], b, s > 0);
          else wgmma(c[m], half[m][RBE_WIDE ? s % BLOCKS32 : 0], b, 1);
        }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      int best = -1;
#pragma unroll
      for (int q = 0; q < REGS / 4; q++) {
        const int4 f = *(const int4*)(tests + CHUNK * j + 8 * q + 2 * t);  // slope, −centre of two queries
        int x = c[0][4 * q] + f.x * root[0], y = c[0][4 * q + 1] + f.z * root[0];
        x = max(x, c[0][4 * q + 2] + f.x * root[1]);
        y = max(y, c[0][4 * q + 3] + f.z * root[1]);
#pragma unroll
        for (int m = 1; m < MT; m++) {
          x = __vimax3_s32(x, c[m][4 * q] + f.x * root[2 * m], c[m][4 * q + 2] + f.x * root[2 * m + 1]);
          y = __vimax3_s32(y, c[m][4 * q + 1] + f.z * root[2 * m], c[m][4 * q + 3] + f.z * root[2 * m + 1]);
        }
        best = __viaddmax_s32(x, f.y, best);
        best = __viaddmax_s32(y, f.w, best);
      }
      if (best >= 0) {  // seldom
#pragma unroll
        for (int q = 0; q < REGS / 4; q++) {
          const int4 f = *(const int4*)(tests + CHUNK * j + 8 * q + 2 * t);
#pragma unroll
          for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (c[m][4 * q + e] + (e & 1 ? f.z : f.x) * root[2 * m + (e >> 1)] + (e & 1 ? f.w : f.y) >= 0) {
                const int query = CHUNK * j + 8 * q + 2 * t + (e & 1);
                keep(a, row0 + g * PER + 2 * m + (e >> 1), query, 2 * (c[m][4 * q + e] >> UNIT) - TOP * a.sums[query]);
              }
        }
      }
      __syncwarp();
    }
    if (kept_pairs(a).count >= 32) offer_kept(a, lane);
  }
  offer_kept(a, lane);
}
#endif

#if RBE_KERNEL == 3
// The same with 8-bit floats and half-precision sums, two to a register: half the registers, half the work of the test.
// A keyword value k is the subnormal e4m3 number k·2⁻⁹; queries are stored as q·2⁴, so a sum is (q·k)·2⁻⁵ and exact in
// half precision while |q·k| ≤ 2048, which the caller guarantees (N · TOP · max|q| ≤ 2048). A fused multiply-add with
// the result's negative part cut off tests two pairs at once.
constexpr int CHUNK = 64, REGS = 16;

// How far two sums are over slope · root, 0 if not; `root` holds ‖k‖ of two rows.
template <int ROW>
__device__ __forceinline__ u32 over2(u32 slope, u32 root, u32 sum) {
  u32 z;
  if (ROW == 0)
    asm("{.reg .b16 l, h; .reg .b32 r; mov.b32 {l, h}, %2; mov.b32 r, {l, l}; fma.rn.relu.f16x2 %0, %1, r, %3;}"
        : "=r"(z) : "r"(slope), "r"(root), "r"(sum));
  else
    asm("{.reg .b16 l, h; .reg .b32 r; mov.b32 {l, h}, %2; mov.b32 r, {h, h}; fma.rn.relu.f16x2 %0, %1, r, %3;}"
        : "=r"(z) : "r"(slope), "r"(root), "r"(sum));
  return z;
}

__device__ __forceinline__ int whole(u32 half) {  // the integer that half · 2⁵ is
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(half & 0xFFFFu));
  return (int)(f * 32.0f);
}

__device__ __forceinline__ void wgmma(u32 (&d)[16], const u32 (&a)[4], u64 b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k32.f16.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19}, %20, p, 1, 1;}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Two sums of a row of which at least one is over its threshold.
__device__ __noinline__ void keep_two(const Scan& a, i64 row, int query, u32 over, u32 sums) {
  if (over & 0xFFFFu) keep(a, row, query, whole(sums));
  if (over >> 16) keep(a, row, query + 1, whole(sums >> 16));
}

extern "C" __global__ void __launch_bounds__(RBE_THREADS, RBE_MINBLOCKS) scan(const __grid_constant__ Scan a) {
  extern __shared__ __align__(128) uint4 shared[];
  const int chunks = a.width / CHUNK;
  const int fragments = chunks * BLOCKS32 * CHUNK * 2;  // uint4 each: 32 bytes a query and step
  u32* slopes = (u32*)(shared + fragments);             // half pairs
  if ((threadIdx.x & 31) == 0) kept_pairs(a).count = 0;
  for (int i = threadIdx.x; i < fragments; i += RBE_THREADS) shared[i] = a.queries[i];
  for (int i = threadIdx.x; i < a.width / 2; i += RBE_THREADS) slopes[i] = ((const u32*)a.slopes)[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads shared memory through the async proxy
  __syncthreads();
  const u32 smem = (u32)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5 & 3;
  const i64 groups = (i64)gridDim.x * (RBE_THREADS / 128);
  const i64 group = (i64)blockIdx.x * (RBE_THREADS / 128) + (threadIdx.x >> 7);
  for (i64 first = a.begin / (4 * ROWS) * (4 * ROWS) + group * 4 * ROWS; first < a.end; first += groups * 4 * ROWS) {
    const i64 row0 = first + warp * ROWS;
    u32 A[MT][BLOCKS32][4], root[MT];  // root: ‖k‖ of rows 2m, 2m + 1, rounded down
    int spread[PER / 4];
    feed(a, A, spread, row0, lane);
    fetch_ahead(a, first + groups * 4 * ROWS, row0 + groups * 4 * ROWS, lane);
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
      const float mine = root_of(spread[i]), next = __shfl_down_sync(~0u, mine, 1);
      u32 both;
      asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(next), "f"(mine));  // rows t and t + 1
      root[2 * i] = __shfl_sync(~0u, both, lane & 28);
      root[2 * i + 1] = __shfl_sync(~0u, both, (lane & 28) | 2);
    }
#pragma unroll 1
    for (int j = 0; j < chunks; j++) {
      u32 c[MT][REGS];
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int s = 0; s < BLOCKS32; s++)
          wgmma(c[m], A[m][s], describe(smem + (j * BLOCKS32 + s) * CHUNK * 32), s > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      const u32* slope = slopes + CHUNK / 2 * j + t;
      u32 any[MT];  // a chain for each tile, as each step waits for the one before
#pragma unroll
      for (int q = 0; q < REGS / 2; q++) {
        const u32 f = slope[4 * q];
#pragma unroll
        for (int m = 0; m < MT; m++) {
          const u32 two = over2<0>(f, root[m], c[m][2 * q]) | over2<1>(f, root[m], c[m][2 * q + 1]);
          any[m] = q ? any[m] | two : two;
        }
      }
      u32 some = any[0];
#pragma unroll
      for (int m = 1; m < MT; m++) some |= any[m];
      if (some) {  // seldom, and then one tile
#pragma unroll
        for (int m = 0; m < MT; m++)
          if (any[m]) {
#pragma unroll
            for (int q = 0; q < REGS / 2; q++) {
              const u32 f = slope[4 * q];
#pragma unroll
              for (int r = 0; r < 2; r++) {
                const u32 over = r ? over2<1>(f, root[m], c[m][2 * q + 1]) : over2<0>(f, root[m], c[m][2 * q]);
                if (over) keep_two(a, row0 + g * PER + 2 * m + r, CHUNK * j + 8 * q + 2 * t, over, c[m][2 * q + r]);
              }
            }
          }
      }
      __syncwarp();
    }
    if (kept_pairs(a).count >= 32) offer_kept(a, lane);
  }
  offer_kept(a, lane);
}
#endif
