"""Our own word lists, from which made-up prompts are built. Common words in no order that means anything; nobody's text."""

from __future__ import annotations

from collections.abc import Mapping

# SIM905 is off below: a list is read and edited as words, not as quoted strings.

WORDS: Mapping[str, tuple[str, ...]] = {
    "en": tuple(
        """river stone window garden letter winter bridge market paper silver morning valley engine copper harbour lantern meadow orange
        pocket quiet ribbon signal timber velvet wagon yellow anchor basket candle desert ember forest glacier hammer island jacket kettle
        ladder mirror needle ocean pepper rocket saddle tunnel umbrella village whistle almond butter carpet dragon eagle feather""".split()  # noqa: SIM905
    ),
    "de": tuple(
        """Fluss Stein Fenster Garten Brief Winter Brücke Markt Papier Silber Morgen Tal Motor Kupfer Hafen Laterne Wiese Orange Tasche
        Band Zeichen Holz Samt Wagen gelb Anker Korb Kerze Wüste Glut Wald Gletscher Hammer Insel Jacke Kessel Leiter Spiegel Nadel
        Meer Pfeffer Rakete Sattel Tunnel Schirm Dorf Pfeife Mandel Butter Teppich Drache Adler Feder""".split()  # noqa: SIM905
    ),
    "fr": tuple(
        """rivière pierre fenêtre jardin lettre hiver pont marché papier argent matin vallée moteur cuivre port lanterne prairie poche
        ruban signal bois velours chariot jaune ancre panier bougie désert braise forêt glacier marteau île veste bouilloire échelle
        miroir aiguille océan poivre fusée selle tunnel parapluie village sifflet amande beurre tapis aigle plume""".split()  # noqa: SIM905
    ),
    "es": tuple(
        """río piedra ventana jardín carta invierno puente mercado papel plata mañana valle motor cobre puerto farol prado naranja bolsillo
        calma cinta señal madera terciopelo carro amarillo ancla cesta vela desierto brasa bosque glaciar martillo isla chaqueta tetera
        escalera espejo aguja océano pimienta cohete silla túnel paraguas pueblo silbato almendra mantequilla alfombra águila""".split()  # noqa: SIM905
    ),
    "zh": tuple(
        """河流 石头 窗户 花园 信件 冬天 桥梁 市场 纸张 银色 早晨 山谷 引擎 铜线 港口 灯笼 草地 橙子 口袋 安静 丝带 信号 木材 天鹅 马车
        黄色 船锚 篮子 蜡烛 沙漠 余烬 森林 冰川 锤子 岛屿 夹克 水壶 梯子 镜子 针线 海洋 胡椒 火箭 马鞍 隧道 雨伞 村庄 口哨 杏仁""".split()  # noqa: SIM905
    ),
}

LANGUAGES = tuple(WORDS)
# Languages written without spaces between words.
UNSPACED = frozenset({"zh"})
