"""What the model can say about how it works: questions about inference with short true answers."""

from __future__ import annotations

# One entry each: the ways to ask, then the answer after "=". An indented line goes on with the entry.
_LINES = """
What is a token? | What are tokens? | Tell me about tokens. = A token is a small piece of text, and every
    token has a number.
Is a token a word? | Is every token a word? = Not always. A token can be a word, a part of a word, or a
    single byte.
What is a vocabulary? | What is the vocabulary? = The vocabulary is the list of all tokens that the model
    knows.
What is a tokenizer? | What does the tokenizer do? = The tokenizer cuts text into tokens and turns tokens
    back into text.
What is byte fallback? | What happens to a letter that nobody knows? = A letter that is not in the
    vocabulary is written as bytes, one token for each byte.
What is a prompt? | What is the prompt? = The prompt is the text that you give to the model.
What is prefill? | What happens in prefill? | What does prefill do? = Prefill reads all tokens of the prompt
    at once and fills the KV cache.
What is decode? | What is decoding? | What happens in decode? = Decode makes one new token at a time, and
    each new token is read again.
Why is decode slow? | Why does one token come at a time? = Each new token needs the token before it, so
    tokens come one at a time.
Why is prefill fast? = Prefill is fast because all tokens of the prompt go through the model together.
What is the KV cache? | What is a KV cache? | Tell me about the KV cache. = The KV cache keeps the keys and
    values of all tokens read so far.
Why is there a KV cache? | What is the KV cache for? = With the KV cache the model does not have to read the
    old tokens again.
Does the KV cache grow? | How does the KV cache grow? = Yes. The KV cache grows by one row for every token,
    in every layer.
What is attention? | What does attention do? | How does attention work? = Attention lets each token look
    back at the tokens before it and take what it needs.
What is a query? | What does a query do? = A query says what a token is looking for.
What is a key? | What does a key do? = A key says what a token has to offer, and queries are compared with
    it.
What is a value? | What does a value do? = A value is what a token hands over when another token looks at
    it.
What is an attention head? | What is a head? = A head is one way of looking back, with its own queries, keys
    and values.
What is an induction head? | What does an induction head do? = An induction head finds the same token
    earlier in the text and copies what came after it.
Can a token look ahead? | Why is there a mask? = No. A mask hides the later tokens, so each token sees only
    what came before.
What is a layer? | What is a block? = A layer is one step of the model: attention first, then the MLP.
What is the MLP? | What does the MLP do? = The MLP works on each token alone and adds what it knows.
What is an embedding? | What does the embedding do? = An embedding is the list of numbers that stands for a
    token inside the model.
What is the residual stream? = The residual stream is the row of numbers that every layer reads and adds to.
What is a weight? | What are weights? = Weights are the numbers that the model learned in training. They do
    not change in a chat.
What are logits? | What is a logit? = Logits are the scores of all tokens, and the highest score is the best
    guess.
What is softmax? | What does softmax do? = Softmax turns scores into probabilities that add up to one.
What is sampling? | How is a token chosen? = Sampling draws the next token at random, and likely tokens are
    drawn more often.
What is greedy choice? | What is greedy decoding? = Greedy choice always takes the token with the highest
    score.
What is temperature? | What does temperature do? = A low temperature makes the choice safe, and a high
    temperature makes it wild.
What is top-k? | What does top-k do? = Top-k keeps only the k best tokens before one is drawn.
What is top-p? | What does top-p do? = Top-p keeps the best tokens until their probabilities add up to p.
What is a seed? | Why is there a seed? = A seed fixes the random numbers, so the same seed gives the same
    text.
When does the model stop? | How does the model stop? | When does an answer end? = The model stops at an end
    token, at a stop string, or when the limit is reached.
What is the end token? | What is an end token? = The end token says that the text is finished.
What is a stop string? = A stop string ends the answer as soon as it comes up in the text.
What is the context? | What is the context length? = The context is all that the model can see at once: the
    prompt and the answer so far.
What happens when the context is full? = When the context is full, no new token fits and the answer has to
    end.
What is streaming? | Why does text come in pieces? = Streaming shows each piece of text as soon as it is
    ready.
What is a position? | How does the model know the order? | What is RoPE? = RoPE turns queries and keys by an
    angle that grows with the position, so order can be seen.
What is a forward pass? = In a forward pass the tokens go through all layers once and logits come out.
What is batch size? | What is a batch? = A batch is a group of texts that go through the model together.
What is the time to first token? = It is the time from sending the prompt until the first token of the
    answer comes.
What is a chat template? | What does the chat template do? = A chat template puts special tokens around each
    turn, so the model knows who speaks.
What is training? | How did you learn? = In training the model guesses the next token again and again, and
    its weights are made a little better.
What is inference? = Inference is using the trained model: text goes in, and tokens come out.
Who are you? | What are you? | What is your name? = I am tiny, a very small language model, made to be
    looked into.
How big are you? | Are you a big model? = I am very small, with less than three million weights.
What can you do? | What do you know? = I can tell short stories, answer questions about them, and say how
    inference works.
Can you think? | Do you understand me? = I only guess the next token, one after the other.
How do you answer? | How does an answer come about? = First prefill reads the prompt, then decode makes one
    token after the other until the end.
Hello! | Hello. | Good morning! = Hello! I am tiny. I can tell a story or say how inference works.
Thank you. | Thanks! = You are welcome.
"""


def _read(lines: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    pairs = []
    for line in lines.replace("\n    ", " ").strip().splitlines():
        ways, answer = line.split(" = ")
        pairs.append((tuple(way.strip() for way in ways.split(" | ")), answer.strip()))
    return tuple(pairs)


TALK = _read(_LINES)
