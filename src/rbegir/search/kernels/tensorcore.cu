// Batch scan on tensor cores: 8-bit products of unpacked keyword codes and integer queries, with a fused test.
//
// Built at run time with -D RBE_N (dimension), RBE_P (keyword planes), RBE_WIDE (queries beyond ±127) and one of
// RBE_KERNEL = 1 (mma.sync, any card since Ampere), 2 (wgmma, Hopper) or 3 (wgmma, 8-bit floats). tensorcore.py has the layouts and the reasons.
//
// A warp owns ROWS consecutive keywords; lane (g, t) = (lane / 4, lane % 4) feeds rows g·PER … g·PER + PER − 1 and, of
// every 32 dimensions, those at bits 2t and 2t + 1 of each byte. The keyword value is 2·u − (2^P − 1) with u in
// 0 … 2^P − 1, so q·k = 2·(u·q) − (2^P − 1)·Σq: the tensor cores compute u·q, never a sign.
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
  const int* floors;     // [buckets, width]: minus the least u·q that can pass at a norm of that bucket
  const i64* limits;     // [width, 3]: pass when q·k·|q·k| · limits[1] >= limits[0] · ‖k‖² + limits[2]
  const int* sums;       // [width]: Σq
  int* counts;           // [width]
  i64* positions;        // [width, room]
  int* dots;             // [width, room]
  int* norms;            // [width, room]
  int room, tiles, width, shift;
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

// u of four dimensions as four bytes: for half 0 the dimensions 8b + 2t + 1 (b = byte), for half 1 the dimensions 8b + 2t.
template <int HALF>
__device__ __forceinline__ u32 unpack(const u32 (&w)[P], int t) {
  if (P == 2) return (HALF == 0 ? w[0] >> (2 * t) : rotate(w[1], (2 * t + 31) & 31)) & 0x03030303u;
  u32 u = 0;
#pragma unroll
  for (int p = 0; p < P; p++) u = 2 * u + ((w[p] >> (2 * t + 1 - HALF)) & 0x01010101u);
  return u;
}

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
__device__ __noinline__ void offer(const Scan& a, i64 row, int query, int product) {
  if (row < a.begin || row >= a.end) return;
  if (a.mask && !(a.mask[row >> 5] >> (row & 31) & 1u)) return;
  int dot = 2 * product - TOP * a.sums[query], norm = norm_at(a, row);
  i64 square = (i64)dot * (dot < 0 ? -dot : dot);
  const i64* limit = a.limits + 3 * query;
  if (square * limit[1] < limit[0] * norm + limit[2]) return;
  int slot = atomicAdd(a.counts + query, 1);
  if (slot >= a.room) return;
  i64 at = (i64)query * a.room + slot;
  a.positions[at] = a.base + row;
  a.dots[at] = dot;
  a.norms[at] = norm;
}

// Unpack the warp's rows from `row0` into A fragments; returns the bucket of the least norm among them.
__device__ __forceinline__ int feed(const Scan& a, u32 (&A)[MT][BLOCKS32][4], i64 row0, int lane) {
  const int g = lane >> 2, t = lane & 3;
  int spread[PER / 4];
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
    if (P > 1) {  // the four lanes of a row group share its norms: lane t takes rows t, t + 4, …
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
  if (P == 1) return 0;
  int most = spread[0];
#pragma unroll
  for (int i = 1; i < PER / 4; i++) most = max(most, spread[i]);
  most = __reduce_max_sync(~0u, most);
  return (N * (TOP * TOP - 1) - most) >> a.shift;
}

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
    const int* floor = floors + feed(a, A, row0, lane) * a.width + 2 * t;
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
          if (sum >= 0)
            offer(a, row0 + g * PER + 2 * (i >> 2) + (i >> 1 & 1), 8 * j + 2 * t + (i & 1), sum - (i & 1 ? f.y : f.x));
        }
      }
    }
  }
}
#endif

#if RBE_KERNEL == 2
// One warpgroup multiplies 4·ROWS keywords by chunks of CHUNK queries; its accumulators live in registers.
#ifndef RBE_CHUNK
#define RBE_CHUNK 32
#endif
constexpr int CHUNK = RBE_CHUNK, REGS = CHUNK / 2;

__device__ __forceinline__ u64 describe(u32 address) {
  // K-major, no swizzle: 8×16-byte cores, the two of a k-step 128 bytes apart, the next eight queries 256 bytes on
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

#if RBE_CHUNK == 32
__device__ __forceinline__ void wgmma(int (&d)[16], const u32 (&a)[4], u64 b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19}, %20, p;}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#endif

extern "C" __global__ void __launch_bounds__(RBE_THREADS, RBE_MINBLOCKS) scan(const __grid_constant__ Scan a) {
  extern __shared__ __align__(128) uint4 shared[];
  const int chunks = a.tiles * 8 / CHUNK;
  const int fragments = chunks * BLOCKS32 * CHUNK * 2;  // uint4 each: 32 bytes a query and step
  int* floors = (int*)(shared + fragments);
  for (int i = threadIdx.x; i < fragments; i += RBE_THREADS) shared[i] = a.queries[i];
  const int buckets = ((N * (TOP * TOP - 1)) >> a.shift) + 1;
  for (int i = threadIdx.x; i < buckets * a.width; i += RBE_THREADS) floors[i] = a.floors[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads shared memory through the async proxy
  __syncthreads();
  const u32 smem = (u32)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5 & 3;
  const i64 groups = (i64)gridDim.x * (RBE_THREADS / 128);
  const i64 group = (i64)blockIdx.x * (RBE_THREADS / 128) + (threadIdx.x >> 7);
  for (i64 first = a.begin / (4 * ROWS) * (4 * ROWS) + group * 4 * ROWS; first < a.end; first += groups * 4 * ROWS) {
    const i64 row0 = first + warp * ROWS;
    u32 A[MT][BLOCKS32][4];
    const int* floor = floors + feed(a, A, row0, lane) * a.width + 2 * t;
#pragma unroll 1
    for (int j = 0; j < chunks; j++) {
      int c[MT][REGS];
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int s = 0; s < BLOCKS32; s++)
          wgmma(c[m], A[m][s], describe(smem + (j * BLOCKS32 + s) * CHUNK * 32), s > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      int best = -1;
#pragma unroll
      for (int q = 0; q < REGS / 4; q++) {
        const int2 f = *(const int2*)(floor + CHUNK * j + 8 * q);
        int x = max(c[0][4 * q], c[0][4 * q + 2]), y = max(c[0][4 * q + 1], c[0][4 * q + 3]);
#pragma unroll
        for (int m = 1; m < MT; m++) {
          x = __vimax3_s32(x, c[m][4 * q], c[m][4 * q + 2]);
          y = __vimax3_s32(y, c[m][4 * q + 1], c[m][4 * q + 3]);
        }
        best = __viaddmax_s32(x, f.x, best);
        best = __viaddmax_s32(y, f.y, best);
      }
      if (best >= 0) {
#pragma unroll
        for (int q = 0; q < REGS / 4; q++) {
          const int2 f = *(const int2*)(floor + CHUNK * j + 8 * q);
          u32 hits = 0;
#pragma unroll
          for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) hits |= (u32)(c[m][4 * q + e] + (e & 1 ? f.y : f.x) >= 0) << (4 * m + e);
          while (hits) {
            const int i = __ffs(hits) - 1;
            hits &= hits - 1;
            int product = c[0][4 * q];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
              for (int e = 0; e < 4; e++) product = i == 4 * m + e ? c[m][4 * q + e] : product;
            offer(a, row0 + g * PER + 2 * (i >> 2) + (i >> 1 & 1), CHUNK * j + 8 * q + 2 * t + (i & 1), product);
          }
        }
      }
      __syncwarp();
    }
  }
}
#endif

#if RBE_KERNEL == 3
// The same with 8-bit floats and half-precision sums, two to a register: half the registers, half the work of the test.
// The byte u is a subnormal e4m3 number, u·2⁻⁹; queries are stored as q·2⁴, so a sum is (u·q)·2⁻⁵ and exact in half
// precision while |u·q| ≤ 2048, which the caller guarantees (N · TOP · max|q| ≤ 2048).
constexpr int CHUNK = 64, REGS = 16;

__device__ __forceinline__ u64 describe(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

__device__ __forceinline__ u32 max2(u32 x, u32 y) {
  u32 z;
  asm("max.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

__device__ __forceinline__ u32 add2(u32 x, u32 y) {
  u32 z;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
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

extern "C" __global__ void __launch_bounds__(RBE_THREADS, RBE_MINBLOCKS) scan(const __grid_constant__ Scan a) {
  extern __shared__ __align__(128) uint4 shared[];
  const int chunks = a.tiles * 8 / CHUNK;
  const int fragments = chunks * BLOCKS32 * CHUNK * 2;  // uint4 each: 32 bytes a query and step
  u32* floors = (u32*)(shared + fragments);             // half pairs
  for (int i = threadIdx.x; i < fragments; i += RBE_THREADS) shared[i] = a.queries[i];
  const int buckets = ((N * (TOP * TOP - 1)) >> a.shift) + 1;
  for (int i = threadIdx.x; i < buckets * a.width / 2; i += RBE_THREADS) floors[i] = ((const u32*)a.floors)[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads shared memory through the async proxy
  __syncthreads();
  const u32 smem = (u32)__cvta_generic_to_shared(shared);
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5 & 3;
  const i64 groups = (i64)gridDim.x * (RBE_THREADS / 128);
  const i64 group = (i64)blockIdx.x * (RBE_THREADS / 128) + (threadIdx.x >> 7);
  for (i64 first = a.begin / (4 * ROWS) * (4 * ROWS) + group * 4 * ROWS; first < a.end; first += groups * 4 * ROWS) {
    const i64 row0 = first + warp * ROWS;
    u32 A[MT][BLOCKS32][4];
    const u32* floor = floors + feed(a, A, row0, lane) * (a.width / 2) + t;
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
      u32 best = 0xFBFFFBFFu;  // −65504 twice
#pragma unroll
      for (int q = 0; q < REGS / 2; q++) {
        u32 x = max2(c[0][2 * q], c[0][2 * q + 1]);
#pragma unroll
        for (int m = 1; m < MT; m++) x = max2(x, max2(c[m][2 * q], c[m][2 * q + 1]));
        best = max2(best, add2(x, floor[(CHUNK * j + 8 * q) / 2]));
      }
      if ((best & 0x80008000u) != 0x80008000u) {
#pragma unroll
        for (int q = 0; q < REGS / 2; q++) {
          const u32 f = floor[(CHUNK * j + 8 * q) / 2];
          u32 hits = 0;
#pragma unroll
          for (int m = 0; m < MT; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
              const u32 over = ~add2(c[m][2 * q + r], f);
              hits |= (over >> 15 & 1u) << (4 * m + 2 * r) | (over >> 31) << (4 * m + 2 * r + 1);
            }
          while (hits) {
            const int i = __ffs(hits) - 1;
            hits &= hits - 1;
            u32 sum = c[0][2 * q];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
              for (int r = 0; r < 2; r++) sum = i >> 1 == 2 * m + r ? c[m][2 * q + r] : sum;
            offer(a, row0 + g * PER + (i >> 1), CHUNK * j + 8 * q + 2 * t + (i & 1), whole(i & 1 ? sum >> 16 : sum));
          }
        }
      }
      __syncwarp();
    }
  }
}
#endif
