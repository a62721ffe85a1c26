"""Anna's network: the GLM-5 architecture (glm_moe_dsa) written out for training on a CPU.

Why not train transformers' own class: its indexer runs under no_grad (it cannot be trained), it has no MTP layer, and its
expert loop is slow. Here the same function is computed (check.py compares logits with transformers' class), plus
  * an indexer that learns: KL(head-averaged attention || softmax of its scores), its inputs cut off from the rest of
    the graph, so the language loss never moves the indexer and the KL never moves the trunk;
  * one indexer for a group of layers (a "full" layer and the "shared" ones behind it): its target is the group's mean;
  * one multi-token-prediction layer behind the trunk;
  * loss-free load balancing: the router bias, used for selection only, walks against each expert's load.
Parameters bear transformers' names, with the MTP layer as layers.{n_layers}.
"""
from dataclasses import asdict, dataclass, field
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 4096
    hidden: int = 256
    n_layers: int = 6
    n_dense: int = 1
    ff_dense: int = 512
    ff_expert: int = 128
    n_experts: int = 16
    top_k: int = 2
    scale: float = 2.0                 # routed_scaling_factor
    heads: int = 8
    q_lora: int = 128
    kv_lora: int = 64
    nope: int = 32
    rope: int = 32
    v: int = 32
    idx_heads: int = 16
    idx_dim: int = 64
    idx_topk: int = 64
    idx_types: str = "FFSSFS"          # one letter a trunk layer; the MTP layer is always full
    eps: float = 1e-5
    eps_latent: float = 1e-6           # transformers leaves the two latent norms at their class default
    theta: float = 10000.0
    max_pos: int = 4096

    def full(self, i):
        return i == self.n_layers or self.idx_types[i] == "F"

    def dict(self):
        return asdict(self)


POOL = {}


def drop_(x, p):
    """Dropout whose mask is a random slice of a fixed random pool: drawing fresh Bernoulli bits costs more than a GEMM here."""
    if p == 0:
        return x
    if p not in POOL:
        POOL[p] = ((torch.rand(8_000_000) >= p).float() / (1 - p)).to(torch.bfloat16)
    n = x.numel()
    at = int(torch.randint(POOL[p].numel() - n, ()))
    return x * POOL[p][at:at + n].view(x.shape)


class RmsNorm(torch.autograd.Function):
    """x f32 -> dt, by hand: autograd's own version makes three times as many passes over memory."""

    @staticmethod
    def forward(ctx, x, w, eps, dt):
        x = x.float()
        inv = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        xn = x * inv
        ctx.save_for_backward(xn, inv, w)
        return torch.mul(xn, w) if dt == torch.float32 else (xn * w).to(dt)

    @staticmethod
    def backward(ctx, g):
        xn, inv, w = ctx.saved_tensors
        g = g.float()
        gx = g * xn
        gw = gx.flatten(0, -2).sum(0)
        dot = (gx.flatten(0, -2) @ w).view(inv.shape).div_(-xn.shape[-1])
        gx = torch.mul(g, w).addcmul_(xn, dot).mul_(inv)
        return gx, gw, None, None


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x, dt=torch.float32):
        return RmsNorm.apply(x, self.weight, self.eps, dt)


class Lin(nn.Module):
    """A matrix that computes in its input's dtype (bf16 while training, f32 in checks) and is kept in f32."""

    def __init__(self, o, i, gain=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * (gain * 0.6 / i ** 0.5))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Dispatch(torch.autograd.Function):
    """Rows into expert order, each expert's run padded to a multiple of PAD; the backward is a gather too (`slot` knows
    where each row went), not a slow scatter-add. Rows of padding are copies of row 0 that nobody reads."""

    @staticmethod
    def forward(ctx, x, src, slot):
        ctx.save_for_backward(slot)
        return x.index_select(0, src)

    @staticmethod
    def backward(ctx, g):
        return g.index_select(0, ctx.saved_tensors[0]), None, None


class Collect(torch.autograd.Function):
    """The way back. Padding gets a zero gradient, so the padded GEMMs of the backward add nothing to the weights."""

    @staticmethod
    def forward(ctx, y, src, slot, real):
        ctx.save_for_backward(src, real)
        return y.index_select(0, slot)

    @staticmethod
    def backward(ctx, g):
        src, real = ctx.saved_tensors
        return g.index_select(0, src).mul_(real.to(g.dtype).unsqueeze(1)), None, None, None


PAD = 64     # oneDNN compiles one kernel for each GEMM shape: ragged run lengths would compile anew at every step


class Grouped(torch.autograd.Function):
    """y[a:b] = x[a:b] @ w[e].T for each expert's (padded) run of rows."""

    @staticmethod
    def forward(ctx, x, w, ends):
        ctx.save_for_backward(x, w)
        ctx.ends = ends
        y, a = x.new_empty(x.shape[0], w.shape[1]), 0
        for e, b in enumerate(ends):
            if b > a:
                torch.mm(x[a:b], w[e].t(), out=y[a:b])
            a = b
        return y

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.contiguous()
        gx, gw, a = torch.empty_like(x), torch.zeros_like(w), 0
        for e, b in enumerate(ctx.ends):
            if b > a:
                torch.mm(g[a:b], w[e], out=gx[a:b])
                torch.mm(g[a:b].t(), x[a:b], out=gw[e])
            a = b
        return gx, gw, None


class MLP(nn.Module):
    def __init__(self, d, ff, out_gain):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Lin(ff, d), Lin(ff, d), Lin(d, ff, out_gain)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c.n_experts, c.hidden) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(c.n_experts))


class Experts(nn.Module):
    def __init__(self, c, out_gain):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(c.n_experts, 2 * c.ff_expert, c.hidden) * 0.6 / c.hidden ** 0.5)
        self.down_proj = nn.Parameter(torch.randn(c.n_experts, c.hidden, c.ff_expert) * out_gain * 0.6 / c.ff_expert ** 0.5)


class MoE(nn.Module):
    def __init__(self, c, out_gain):
        super().__init__()
        self.c, self.gate, self.experts = c, Router(c), Experts(c, out_gain)
        self.shared_experts = MLP(c.hidden, c.ff_expert, out_gain)
        self.load = None                                     # tokens an expert got in the last forward

    def forward(self, x):
        c, shape = self.c, x.shape
        x = x.reshape(-1, c.hidden)
        s = F.linear(x.float(), self.gate.weight).sigmoid()
        sel = (s.detach() + self.gate.e_score_correction_bias).topk(c.top_k, dim=-1).indices
        w = s.gather(1, sel)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c.scale
        flat = sel.reshape(-1)
        order = flat.argsort(stable=True)                    # assignments (token, choice) in expert order
        self.load = torch.bincount(flat, minlength=c.n_experts)
        padded = (self.load + PAD - 1) // PAD * PAD
        ends = padded.cumsum(0)
        shift = (ends - padded) - (self.load.cumsum(0) - self.load)
        at = torch.arange(flat.numel()) + shift.repeat_interleave(self.load)    # slot of each assignment, in expert order
        slot = torch.empty_like(flat)
        slot[order] = at
        ends = ends.tolist()
        src, real = flat.new_zeros(ends[-1]), torch.zeros(ends[-1], dtype=torch.bool)
        src[at], real[at] = order, True
        xs = Dispatch.apply(x.unsqueeze(1).expand(-1, c.top_k, -1).reshape(-1, c.hidden), src, slot)
        g, u = Grouped.apply(xs, self.experts.gate_up_proj.to(x.dtype), ends).chunk(2, -1)
        y = Grouped.apply(F.silu(g) * u, self.experts.down_proj.to(x.dtype), ends)
        y = Collect.apply(y, src, slot, real).view(-1, c.top_k, c.hidden)
        y = torch.bmm(w.to(y.dtype).unsqueeze(1), y).squeeze(1)
        return (y + self.shared_experts(x)).view(shape)

    @torch.no_grad()
    def balance(self, step):
        load = self.load.float()
        self.gate.e_score_correction_bias += step * torch.sign(load.mean() - load)


def rotate(x, cs):
    """Interleaved RoPE over the last axis; cos/sin broadcast over [.., T, d/2]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cs
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Indexer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wq_b, self.wk = Lin(c.idx_heads * c.idx_dim, c.q_lora), Lin(c.idx_dim, c.hidden)
        self.k_norm = nn.LayerNorm(c.idx_dim, eps=1e-6)
        self.weights_proj = Lin(c.idx_heads, c.hidden)

    def forward(self, x, qr, cs):
        """Scores [B, T, T] in f32, before the causal mask."""
        c, (B, T, _) = self.c, x.shape
        cs = [t.to(x.dtype) for t in cs]
        q = self.wq_b(qr).view(B, T, c.idx_heads, c.idx_dim).transpose(1, 2)
        k = self.k_norm(self.wk(x).float()).to(x.dtype)
        q = torch.cat((rotate(q[..., :c.rope], cs), q[..., c.rope:]), -1)
        k = torch.cat((rotate(k[..., :c.rope], cs), k[..., c.rope:]), -1)
        s = F.relu(q.reshape(B, -1, c.idx_dim) @ k.transpose(1, 2)).view(B, c.idx_heads, T, T)
        w = self.weights_proj(x.float()) * (c.idx_heads ** -0.5 * c.idx_dim ** -0.5)
        return torch.einsum("bhqk,bqh->bqk", s, w.to(s.dtype)).float()


class Attention(nn.Module):
    def __init__(self, c, i, out_gain):
        super().__init__()
        self.c = c
        self.q_a_proj, self.q_a_layernorm = Lin(c.q_lora, c.hidden), Norm(c.q_lora, c.eps_latent)
        self.q_b_proj = Lin(c.heads * (c.nope + c.rope), c.q_lora)
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = Lin(c.kv_lora + c.rope, c.hidden), Norm(c.kv_lora, c.eps_latent)
        self.kv_b_proj = Lin(c.heads * (c.nope + c.v), c.kv_lora)
        self.o_proj = Lin(c.hidden, c.heads * c.v, out_gain)
        self.indexer = Indexer(c) if c.full(i) else None

    def forward(self, x, cs, state):
        c, (B, T, _) = self.c, x.shape
        csx = [t.to(x.dtype) for t in cs]
        qr = self.q_a_layernorm(self.q_a_proj(x), x.dtype)
        q = self.q_b_proj(qr).view(B, T, c.heads, -1).transpose(1, 2)
        q, r = q.split((c.nope, c.rope), -1)
        q = torch.cat((q, rotate(r, csx)), -1)
        kv, kr = self.kv_a_proj_with_mqa(x).split((c.kv_lora, c.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(kv, x.dtype)).view(B, T, c.heads, -1).transpose(1, 2)
        kr = rotate(kr, csx).unsqueeze(1).expand(-1, c.heads, -1, -1)
        k, v = kv.split((c.nope, c.v), -1)
        k = torch.cat((k, kr), -1)
        if self.indexer is not None:
            state.new_group(self.indexer, x.detach(), qr.detach(), cs)
        # plain matmul + softmax: the fused CPU kernel was measured slower, by its backward
        bias = state.bias(q.dtype).expand(B, c.heads, T, T).reshape(-1, T, T) if state.mask is not None else \
            state.bias(q.dtype).expand(B * c.heads, T, T)
        p = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5).softmax(-1)
        o = (p @ v.reshape(B * c.heads, T, c.v)).view(B, c.heads, T, c.v)
        state.observe(q, k)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1))


class State:
    """What passes between layers: the current selection, and the running target of the indexer being trained."""

    def __init__(self, sparse, topk, kl_rows, T, stats=False):
        self.sparse, self.topk, self.rows, self.stats = sparse, topk, kl_rows, stats
        self.causal = torch.ones(T, T, dtype=torch.bool).tril()
        self.mask, self.scores, self.target, self.n, self.kls, self.recalls = None, None, None, 0, [], []

    def new_group(self, indexer, x, qr, cs):
        self.close()
        if self.sparse:
            with torch.no_grad():
                s = indexer(x, qr, cs).masked_fill(~self.causal, float("-inf"))
                sel = torch.zeros_like(s, dtype=torch.bool).scatter(-1, s.topk(min(self.topk, s.shape[-1]), -1).indices, True)
                self.mask = (sel & self.causal).unsqueeze(1)
        if self.rows:
            self.scores = indexer(x[:self.rows], qr[:self.rows], cs)

    def bias(self, dt):
        m = self.causal if self.mask is None else self.mask
        return torch.zeros(m.shape, dtype=dt).masked_fill_(~m, -1e30)

    @torch.no_grad()
    def observe(self, q, k):
        if not self.rows:
            return
        q, k, m = q[:self.rows], k[:self.rows], self.causal if self.mask is None else self.mask[:self.rows]
        p = (q @ k.transpose(2, 3)).float().mul_(q.shape[-1] ** -0.5).masked_fill_(~m, float("-inf"))
        p = p.softmax(-1).mean(1)
        self.target, self.n = (p if self.target is None else self.target + p), self.n + 1

    def close(self):
        """End of a group: one KL term, over the causal keys (dense) or the selected ones (sparse)."""
        if self.scores is None:
            return
        m = self.causal if self.mask is None else self.mask[:self.rows, 0]
        p = self.target / self.n
        lq = self.scores.masked_fill(~m, -1e30).log_softmax(-1)
        self.kls.append((p * (p.clamp_min(1e-9).log() - lq)).sum(-1).mean())
        if self.stats and self.topk < p.shape[-1]:      # attention mass inside the chosen keys, against the best choice
            with torch.no_grad():
                late = slice(self.topk, None)
                pick = self.scores.masked_fill(~self.causal, float("-inf"))[:, late].topk(self.topk, -1).indices
                best = p[:, late].topk(self.topk, -1)
                hit = torch.zeros_like(p[:, late]).scatter(-1, pick, 1.0)
                self.recalls.append((p[:, late].gather(-1, pick).sum(-1).mean().item(), best.values.sum(-1).mean().item(),
                                     hit.gather(-1, best.indices).mean().item()))
        self.scores, self.target, self.n = None, None, 0


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        gain = (2 * c.n_layers) ** -0.5
        self.self_attn = Attention(c, i, gain)
        self.mlp = MLP(c.hidden, c.ff_dense, gain) if i < c.n_dense else MoE(c, gain / c.scale)
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        if i == c.n_layers:
            self.enorm, self.hnorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
            self.eh_proj = Lin(c.hidden, 2 * c.hidden)
            self.shared_head = nn.ModuleDict({"norm": Norm(c.hidden, c.eps)})

    def forward(self, h, cs, state, dt, drop):
        h = h + drop_(self.self_attn(self.input_layernorm(h, dt), cs, state), drop)
        return h + drop_(self.mlp(self.post_attention_layernorm(h, dt)), drop)


class Anna(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.layers = nn.ModuleList([Layer(c, i) for i in range(c.n_layers + 1)])
        self.norm = Norm(c.hidden, c.eps)
        self.lm_head = Lin(c.vocab, c.hidden, 0.5)

    def angles(self, T):
        f = torch.arange(T).float()[:, None] / self.c.theta ** (torch.arange(0, self.c.rope, 2).float() / self.c.rope)
        return f.cos(), f.sin()

    def forward(self, ids, sparse=False, dt=torch.float32, drop=0.0, kl_rows=0, mtp=None, stats=False):
        """(trunk logits [B,T,V], MTP logits of the first `mtp` rows [mtp,T-1,V] (None: all rows), [KL of each indexer], State)."""
        c, (B, T) = self.c, ids.shape
        cs, st = self.angles(T), State(sparse, c.idx_topk, kl_rows, T, stats)
        emb = self.embed_tokens(ids)
        h = drop_(emb, drop)
        for layer in self.layers[:c.n_layers]:
            h = layer(h, cs, st, dt, drop)
        st.close()
        h = self.norm(h)
        logits, mlogits = self.lm_head(h.to(dt)), None
        mtp = B if mtp is None else mtp
        if mtp:                                              # position p: token p+1 and the trunk's state at p -> token p+2
            l = self.layers[c.n_layers]
            s2 = State(sparse, c.idx_topk, kl_rows, T - 1, stats)
            x = torch.cat((l.enorm(emb[:mtp, 1:]), l.hnorm(h[:mtp, :-1])), -1)
            x = l(l.eh_proj(x.to(dt)).float(), [t[:T - 1] for t in cs], s2, dt, drop)
            s2.close()
            mlogits = self.lm_head(l.shared_head["norm"](x).to(dt))
            st.kls += s2.kls
            st.recalls += s2.recalls
        return logits, mlogits, st.kls, st

    def moes(self):
        return [l.mlp for l in self.layers if isinstance(l.mlp, MoE)]
