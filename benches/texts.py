"""Texts by class. Everything is seeded and comes with Python or stands here; nothing is downloaded."""

import importlib.util
import pydoc_data.topics
import random
from pathlib import Path

SEED = 20240607

ZH = """\
今天早上下了一场小雨，街上的人比平时少了很多。
我们需要先把数据整理好，然后才能开始训练模型。
这个函数接收两个参数，返回它们的最大公约数。
他从书架上拿下一本旧书，轻轻吹去上面的灰尘。
如果温度低于零度，水管里的水就会结冰。
请用三句话概括这篇文章的主要内容，并说明理由。
春天来了，公园里的樱花开得正盛，吸引了许多游客。
程序运行时出现了内存不足的错误，建议减少批量大小。"""
JA = """\
今日は朝から天気がよくて、散歩にちょうどいい日です。
この関数は引数を二つ受け取り、結果をリストで返します。
駅前の喫茶店で友人と待ち合わせをして、コーヒーを飲みました。
データベースへの接続に失敗した場合は、設定を確認してください。
彼女は窓を開けて、遠くの山を静かに眺めていた。
次の文章を読んで、質問に日本語で答えてください。
新しいソフトウェアをインストールするには管理者の権限が必要です。"""
KO = """\
오늘은 날씨가 맑아서 산책하기에 아주 좋은 날입니다.
이 함수는 두 개의 인자를 받아서 결과를 목록으로 돌려줍니다.
역 앞에 있는 작은 카페에서 친구를 만나 커피를 마셨습니다.
데이터베이스 연결에 실패하면 설정 파일을 다시 확인하세요.
그는 창문을 열고 멀리 있는 산을 조용히 바라보았다.
다음 글을 읽고 질문에 한국어로 대답해 주세요."""
HI = """\
आज सुबह हल्की बारिश हुई और सड़कों पर लोग कम थे।
यह फ़ंक्शन दो संख्याएँ लेता है और उनका योग लौटाता है।
वह खिड़की खोलकर दूर के पहाड़ों को चुपचाप देखती रही।
कृपया नीचे दिया गया लेख पढ़ें और प्रश्नों के उत्तर दें।
नया सॉफ़्टवेयर स्थापित करने के लिए अनुमति चाहिए।"""
TH = """\
วันนี้อากาศดีมากเหมาะสำหรับการเดินเล่นในสวนสาธารณะ
ฟังก์ชันนี้รับค่าสองค่าและคืนผลลัพธ์เป็นรายการ
เธอเปิดหน้าต่างแล้วมองดูภูเขาที่อยู่ไกลออกไป
กรุณาอ่านบทความต่อไปนี้แล้วตอบคำถามเป็นภาษาไทย
การติดตั้งโปรแกรมใหม่ต้องใช้สิทธิ์ของผู้ดูแลระบบ"""
EMOJI = """\
👩‍👩‍👧‍👦 👨‍💻 🏳️‍🌈 👍🏽 👩🏾‍🚀 🧑‍🤝‍🧑 ❤️‍🔥 🇯🇵 🇧🇷 🇿🇦 1️⃣ 🫠 😀 😂 🎉 🐻‍❄️ 👁️‍🗨️ 🤷🏻‍♀️ ✨ 🦜 🧬 ☕️ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ok great wow thanks nice"""


def _shuffled(lines: list[str], size: int, rng: random.Random, sep: str = "\n") -> str:
    out, length = [], 0
    while length < size:
        line = rng.choice(lines)
        if rng.random() < 0.3:
            line += f" {rng.randrange(10_000)}"
        out.append(line)
        length += len(line) + 1
    return sep.join(out)


def texts(size: int = 60_000) -> dict[str, str]:
    """Text class -> about `size` characters."""
    rng = random.Random(SEED)
    topics = pydoc_data.topics.topics
    prose = [part for topic in sorted(topics) for part in topics[topic].split("\n\n") if len(part) > 120]
    modules = ("argparse", "ast", "asyncio.base_events", "typing", "inspect", "http.client")
    sources = [Path(importlib.util.find_spec(module).origin) for module in modules]
    out = {
        "english": _shuffled(prose, size, rng, "\n\n"),
        "code": "".join(source.read_text(encoding="utf-8") for source in sources)[:size],
        "chinese": _shuffled(ZH.split("\n"), size, rng),
        "japanese": _shuffled(JA.split("\n"), size, rng),
        "korean": _shuffled(KO.split("\n"), size, rng),
        "hindi": _shuffled(HI.split("\n"), size, rng),
        "thai": _shuffled(TH.split("\n"), size, rng),
        "emoji": _shuffled(EMOJI.split(), size // 3, rng, " "),
    }
    parts = []
    for name, text in out.items():
        weight = 3 if name in ("english", "code") else 1
        parts += [text[at : at + 400] for at in range(0, min(len(text), weight * size // 4), 400)]
    rng.shuffle(parts)
    out["mixed"] = "\n".join(parts)
    return out
