#!/usr/bin/env python3
"""Train Anna on a CPU: warm-up, stable, then a linear decay whose start is chosen while the run goes.

Two single-threaded processes share the weights in memory, each takes half of the batch and owns half of the optimiser.
Why not one process with two threads: every operator ends in a barrier of the OpenMP team, and when anything else runs on
the machine both threads then wait for the one that was descheduled. Two processes meet once a step.

The phases come from RUN/schedule.json, read again at every step, so the end can be fitted to the clock:
    {"sparse": step, "decay": step, "end": step}
  before `sparse`: dense attention, the indexer learns by KL from all causal keys (DeepSeek-V3.2's warm-up);
  from `sparse`:   attention sees the indexer's top-k only (shared layers reuse it), KL over the selected keys;
  from `decay`:    the learning rate falls linearly to 2 % at `end`.
Rerunning the same command resumes from the last checkpoint. Batches depend on (seed, step, rank) only.
"""
import argparse, json, os, time
# big tensors come back to the heap instead of going back to the kernel at every operator (must be set before start)
ENV = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000", "MALLOC_TOP_PAD_": "268435456",
       "OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from model import Anna, Config

MIX = {"austen": 0.53, "kjv": 0.37, "moby": 0.06, "sotu": 0.04}
FOREVER = 10 ** 9


def load(data, name):
    return np.fromfile(os.path.join(data, name + ".bin"), np.uint16)


def batch(sources, rng, rows, T):
    names = list(MIX)
    out = np.empty((rows, T), np.int64)
    for r in range(rows):
        s = sources[names[rng.choice(len(names), p=list(MIX.values()))]]
        at = rng.integers(0, len(s) - T)
        out[r] = s[at:at + T]
    return torch.from_numpy(out)


class Muon(torch.optim.Optimizer):
    """Momentum, then (nearly) the nearest orthogonal matrix by four Newton-Schulz steps; expert stacks are batches of matrices.

    The update's RMS is scaled to 0.2, AdamW's usual size, so one learning rate and weight decay serve both optimisers.
    Why: a CPU affords few steps, and this makes much of each.
    """

    def __init__(self, params, lr, wd, split):
        super().__init__(params, {"lr": lr, "wd": wd, "momentum": 0.95})
        self.split = split                               # gate_up stacks are two matrices an expert

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                shape = (p.shape[0] * 2, p.shape[1] // 2, p.shape[2]) if id(p) in self.split else p.shape
                x = g.view(shape).to(torch.bfloat16)
                tall = x.shape[-2] > x.shape[-1]
                x = x.mT if tall else x
                x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
                for _ in range(4):
                    y = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * y + 2.0315 * (y @ y)) @ x
                x = x.mT if tall else x
                p.mul_(1 - group["lr"] * group["wd"])
                p.add_(x.reshape(p.shape).float(), alpha=-group["lr"] * 0.2 * max(shape[-2:]) ** 0.5)


def xent(logits, ids, ahead):
    """Position p predicts token p + ahead; positions without a target are ignored (cutting the logits would copy them)."""
    target = torch.full(logits.shape[:2], -100)
    target[:, :ids.shape[1] - ahead] = ids[:, ahead:]
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def losses(m, ids, sparse, dt, drop, kl_rows, mtp_weight, mtp=True):
    mtp_rows = max(1, len(ids) // 4) if m.training else len(ids)     # a quarter of the rows teach the MTP layer: it is one of seven
    lg, ml, kls, _ = m(ids, sparse, dt, drop, kl_rows, mtp_rows if mtp else 0)
    lm = xent(lg, ids, 1)
    mt = xent(ml, ids[:len(ml)], 2) if mtp else torch.zeros(())
    kl = sum(kls) if kls else torch.zeros(())
    return lm + mtp_weight * mt + kl, lm.detach(), mt.detach(), kl.detach()


@torch.no_grad()
def held(m, arrays, sparse, T=256, rows=12):
    out = []
    m.eval()
    for a in arrays:
        n = len(a) // T
        pick = np.linspace(0, n - 1, rows).astype(int)
        ids = torch.from_numpy(np.stack([a[i * T:(i + 1) * T] for i in pick]).astype(np.int64))
        _, lm, mt, _ = losses(m, ids, sparse, torch.bfloat16, 0.0, 0, 0.0)
        out += [lm.item(), mt.item()]
    return out


def lr_at(step, a, sch):
    lr = a.lr * min(1.0, (step + 1) / a.warmup)
    if step >= sch["decay"]:
        lr *= max(0.02, 1 - 0.98 * (step - sch["decay"]) / max(1, sch["end"] - sch["decay"]))
    return lr


def schedule(run):
    try:
        return {"sparse": FOREVER, "decay": FOREVER, "end": FOREVER, **json.load(open(os.path.join(run, "schedule.json")))}
    except (OSError, ValueError):
        return {"sparse": FOREVER, "decay": FOREVER, "end": FOREVER}


def worker(rank, a, m, grads, shared, barrier, start):
    torch.set_num_threads(1)
    ps = list(m.parameters())
    names = [n for n, _ in m.named_parameters()]
    sizes = [p.numel() for p in ps]
    at = np.concatenate(([0], np.cumsum(sizes)))
    half = int(np.searchsorted(at, at[-1] // 2))
    mine = range(0, half) if rank == 0 else range(half, len(ps))
    lo, hi = int(at[mine[0]]), int(at[mine[-1] + 1])
    is_idx = ["indexer" in n for n in names]
    word = lambda i: any(k in names[i] for k in ("embed_tokens", "lm_head", ".gate.weight", "indexer"))
    matrix = [i for i in mine if ps[i].dim() > 1 and not word(i)]
    decayed = [i for i in mine if ps[i].dim() > 1 and word(i) and ("lm_head" in names[i] or "indexer" in names[i])]
    plain = [i for i in mine if i not in matrix and i not in decayed]
    split = {id(ps[i]) for i in matrix if names[i].endswith("gate_up_proj")}
    opts = [torch.optim.AdamW([{"params": [ps[i] for i in decayed], "weight_decay": a.wd},
                               {"params": [ps[i] for i in plain], "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95), fused=True),
            Muon([ps[i] for i in matrix], a.lr, a.wd, split)]
    if start:
        for opt, sd in zip(opts, torch.load(f"{a.run}/ckpt-{start}.opt{rank}.pt")):
            opt.load_state_dict(sd)
    sources = {k: load(a.data, k) for k in MIX}
    helds = [load(a.data, "held_austen"), load(a.data, "held_kjv")]
    mean = torch.zeros(3)
    t0 = last_save = time.time()
    tokens = 0
    step = start
    shared["stop"].zero_()
    while True:
        barrier.wait()                                  # everyone sees the same schedule and weights
        if rank == 0:
            sch = schedule(a.run)
            shared["sch"].copy_(torch.tensor([sch["sparse"], sch["decay"], sch["end"]]))
            due = time.time() - last_save > a.save_every
            shared["flags"].copy_(torch.tensor([step >= sch["end"], due or step >= sch["end"] or os.path.exists(f"{a.run}/SAVE")]))
        barrier.wait()
        sch = dict(zip(("sparse", "decay", "end"), shared["sch"].tolist()))
        stop, save = shared["flags"].tolist()
        if save and step > start:
            last_save = time.time()
            torch.save([o.state_dict() for o in opts], f"{a.run}/ckpt-{step}.opt{rank}.pt")
            if rank == 0:
                torch.save({"model": m.state_dict(), "config": m.c.dict(), "step": step, "tokens": int(shared["tokens"])},
                           f"{a.run}/ckpt-{step}.pt")
            barrier.wait()
            if rank == 0:
                old = open(f"{a.run}/latest").read() if os.path.exists(f"{a.run}/latest") else ""
                open(f"{a.run}/latest.tmp", "w").write(str(step))
                os.replace(f"{a.run}/latest.tmp", f"{a.run}/latest")
                if os.path.exists(f"{a.run}/SAVE"):
                    os.remove(f"{a.run}/SAVE")
                for f in ([f"ckpt-{old}.pt", f"ckpt-{old}.opt0.pt", f"ckpt-{old}.opt1.pt"] if old and old != str(step) else []):
                    os.path.exists(f"{a.run}/{f}") and os.remove(f"{a.run}/{f}")
                print(f"saved step {step}", flush=True)
        if stop:
            break
        sparse = step >= sch["sparse"]
        long = sparse and step % 4 == 0                  # a quarter of the sparse steps: sequences of 512
        rows, T = (a.rows // 2, 2 * a.seq) if long else (a.rows, a.seq)
        ids = batch(sources, np.random.default_rng((a.seed, step, rank)), rows, T)
        mtp_weight = 0.3 if step < sch["decay"] else 0.1
        m.train()
        m.zero_grad(set_to_none=True)
        torch.manual_seed((a.seed * 1_000_003 + step) * 2 + rank)
        loss, lm, mt, kl = losses(m, ids, sparse, torch.bfloat16, a.dropout, a.kl_rows if sparse or step % 2 else 0, mtp_weight)
        loss.backward()
        for i, p in enumerate(ps):
            grads[rank][at[i]:at[i + 1]] = p.grad.reshape(-1) if p.grad is not None else 0
        for j, x in enumerate(m.moes()):
            shared["load"][rank, j] = x.load
        shared["tokens"] += ids.numel()                 # two writers may race by one batch: a count for the log only
        barrier.wait()
        g = (grads[0][lo:hi] + grads[1][lo:hi]) / 2
        sq = torch.zeros(2)                              # the indexer is clipped apart: its KL must not scale the trunk
        for i in mine:
            p = g[at[i] - lo:at[i + 1] - lo].view_as(ps[i])
            ps[i].grad = p
            sq[int(is_idx[i])] += p.pow(2).sum()
        shared["norm"][rank] = sq
        barrier.wait()
        norm = shared["norm"].sum(0).sqrt()
        for i in mine:
            ps[i].grad.mul_(min(1.0, 1.0 / (norm[int(is_idx[i])].item() + 1e-6)))
        lr = lr_at(step, a, sch)
        for opt in opts:
            for gr in opt.param_groups:
                gr["lr"] = lr
            opt.step()
        if rank == 0:
            for j, x in enumerate(m.moes()):
                x.load = shared["load"].sum(0)[j]
                x.balance(5e-3 if step < 300 else 1e-3 * min(1.0, 2 * lr / a.lr))
        now = torch.stack((lm, mt, kl if kl > 0 else mean[2]))
        mean = mean * 0.95 + 0.05 * now if step > start else now
        step += 1
        tokens += 2 * ids.numel()
        if rank == 0 and step % 20 == 0:
            worst = (shared["load"].sum(0).float().max(1).values / shared["load"].sum(0).float().mean(1)).max()
            print(f"{time.strftime('%H:%M:%S')} step {step} tok {int(shared['tokens']) / 1e6:.2f}M lm {mean[0]:.3f} mtp {mean[1]:.3f} "
                  f"kl {mean[2]:.3f} gn {norm[0]:.2f}/{norm[1]:.2f} lr {lr:.1e} maxload {worst:.2f} {'sparse' if sparse else 'dense'} "
                  f"{tokens / (time.time() - t0):.0f} tok/s", flush=True)
        if step % a.eval_every == 0:
            barrier.wait()
            if rank == 0:
                h = held(m, helds, sparse)
                m.train()
                print(f"HELD step {step} austen {h[0]:.3f} (mtp {h[1]:.3f}) kjv {h[2]:.3f} (mtp {h[3]:.3f})", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--run", required=True)
    for k, v in dict(lr=4e-3, wd=0.05, dropout=0.0).items():
        ap.add_argument("--" + k, type=float, default=v)
    for k, v in dict(rows=8, seq=256, warmup=60, kl_rows=1, seed=1, save_every=300, eval_every=200).items():
        ap.add_argument("--" + k.replace("_", "-"), type=int, default=v)
    a = ap.parse_args()
    os.makedirs(a.run, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    m, start, tokens = Anna(Config()), 0, 0
    if os.path.exists(f"{a.run}/latest"):
        start = int(open(f"{a.run}/latest").read())
        ck = torch.load(f"{a.run}/ckpt-{start}.pt")
        m.load_state_dict(ck["model"])
        tokens = ck["tokens"]
        print("resuming at step", start, flush=True)
    m.share_memory()
    n, moes = sum(p.numel() for p in m.parameters()), len(m.moes())
    print("parameters", n, flush=True)
    grads = [torch.zeros(n).share_memory_() for _ in range(2)]
    shared = {"load": torch.zeros(2, moes, m.c.n_experts, dtype=torch.long), "norm": torch.zeros(2, 2), "tokens": torch.tensor(tokens),
              "sch": torch.zeros(3, dtype=torch.long), "flags": torch.zeros(2, dtype=torch.bool), "stop": torch.zeros(1)}
    for t in shared.values():
        t.share_memory_()
    mp.spawn(worker, (a, m, grads, shared, mp.get_context("spawn").Barrier(2), start), nprocs=2)


if __name__ == "__main__":
    if any(os.environ.get(k) != v for k, v in ENV.items()):
        import sys
        os.environ.update(ENV)
        os.execv(sys.executable, [sys.executable] + sys.argv)
    main()
