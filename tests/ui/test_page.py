"""The page in a real browser, before a real server of the scheduler with a made-up cluster."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from deviceplugin.cluster.view.views import Installation
from deviceplugin.model.units import bytes_text
from tests.cluster.extender.makers import node
from tests.cluster.view.claims import allocated, claiming, offer
from tests.own_network import own_network
from tests.ui.browser import launched, visiting
from tests.ui.cluster import A100, T4, MadeCluster, large, serving, usual

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = "<img src=x onerror=document.title='owned'>\"'&<script>document.title='owned'</script>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: None) -> AsyncIterator[Browser]:
    with own_network():
        async with launched() as found:
            yield found


async def test_nodes_gpus_and_containers_are_shown_with_what_they_use(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui")
        assert visit.page.url == f"{url}/ui/"
        await expect(visit.page.locator(".nodes > li")).to_have_count(8)
        await expect(visit.page.locator("#totals")).to_contain_text("1 node, 1 GPU unavailable")
        tile = visit.page.get_by_label("GPU 4: 85 of 100 cores, 52 of 80 GiB allocated, 44 % busy")
        await expect(tile.first).to_be_visible()
        ill = visit.page.locator(".gpu.unavailable").first
        await expect(ill).to_have_attribute("aria-label", re.compile("GPU 5: .*unavailable: .*Xid 79"))
        await expect(visit.page.locator(".node.bad")).to_contain_text("vcuda agent is down")
        await tile.first.click()
        await expect(visit.page.locator("h1")).to_have_text("gpu-a100-1")
        card = visit.page.locator(".gpu-card.chosen")
        await expect(card).to_contain_text("28.9 GiB used")
        await expect(card.locator("tbody tr")).to_have_count(3)
        assert (visit.strangers(url), visit.problems) == ([], [])


async def test_pods_are_for_who_shows_a_token_which_stays_in_memory(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser, token="") as visit:
        await visit.open(f"{url}/ui/#/nodes")
        await expect(visit.page.locator(".nodes .gpu").first).to_be_visible()
        for where in ("nodes/gpu-a100-1", "events", "pods"):
            await visit.page.evaluate(f"location.hash = '#/{where}'")
            await expect(visit.page.locator("#trouble")).to_contain_text("The pods of all namespaces are shown")
            await expect(visit.page.locator("#trouble")).to_contain_text("Paste a token by the button Token…")
            await expect(visit.page.locator("#totals")).to_contain_text("1 node, 1 GPU unavailable")
            assert "llama" not in await visit.text()
        await visit.page.click("text=Token…")
        await visit.page.fill("#token", "wrong")
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("#trouble")).to_contain_text("token was refused")
        await visit.page.click("text=Token…")
        await visit.page.fill("#token", "good")
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("tbody")).to_contain_text("training/llama-ft-0")
        await expect(visit.page.locator("#trouble")).to_be_hidden()
        kept = await visit.page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]")
        assert kept == ["", 0, 0]
        assert "good" in made.token_asked
        assert [each for each in visit.requests if "good" in each or "wrong" in each] == []


async def test_waiting_pods_have_their_reasons_and_a_pod_its_explanation(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/pending")
        await expect(visit.page.locator(".reasons")).to_contain_text("memory request larger than any GPU")
        await expect(visit.page.locator("tbody tr")).to_have_count(2)
        await visit.open(f"{url}/ui/#/pods/research/sweep-11")
        await expect(visit.page.locator(".sentence")).to_have_text("memory request larger than any GPU (7 of 8 nodes)")
        await expect(visit.page.locator("main")).to_contain_text("Nodes nearest to fitting")
        near = visit.page.locator(".verdicts").first.locator("> li")
        await expect(near).to_have_count(3)
        await expect(near.first).to_contain_text("Fix: ")
        await expect(near.first.locator(".lines li").first).to_contain_text("GPU")
        others = visit.page.locator("details")
        await expect(others.locator("li").first).to_be_hidden()
        await others.locator("summary").click()
        await expect(others.locator("> ul > li")).to_have_count(5)
        await expect(visit.page.locator(".facts")).to_contain_text("Requested60 cores, 100 GiBNodenone yet")
        await expect(visit.page.locator("main")).to_contain_text("Why Pending")
        await expect(visit.page.locator("h1 .stage")).to_have_text("Pending")
        await expect(visit.page.locator("main table")).to_have_count(0)
        await expect(visit.page.locator("main")).not_to_contain_text("Longer history")
        assert visit.problems == []


async def test_memory_has_one_form_on_the_page_and_in_the_command(browser: Browser) -> None:
    gib = 1 << 30
    parts = (0, 0.3, 1, 1.125, 12.345, 79.5, 262.25, 262.5, 9999.96, 1 << 14)
    sizes = [1, *(part * gib for part in parts)]
    form = "async (sizes) => { const { memory } = await import('/ui/format.js'); return sizes.map(memory); }"
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        texts = [each.replace(",", "") for each in await visit.page.evaluate(form, sizes)]
        assert texts == [bytes_text(size) for size in sizes]
        assert texts[4:8] == ["1.13 GiB", "12.35 GiB", "79.5 GiB", "262.3 GiB"]


async def test_what_a_pending_pod_requests_is_in_no_sum_of_allocated(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/pods")
        await expect(visit.page.locator("tfoot")).to_contain_text("Sum of 30 pods without 2 Pending1,073 of 2,170")
        row = visit.page.locator("tbody tr", has_text="sweep-11")
        await expect(row).to_contain_text("Pending––60requested100 GiBrequested")
        card = visit.page.locator("#totals .card", has_text="Pods")
        await expect(card).to_have_text("Pods301 of them Reserved, 2 Pending")
        await expect(visit.page.locator(".note")).to_contain_text("Used: what containers use.")
        await visit.page.select_option("[data-filter=stage]", "pending")
        await expect(visit.page.locator("tbody tr")).to_have_count(2)
        await expect(visit.page.locator("tfoot tr")).to_have_count(0)
        await visit.page.keyboard.press("4")
        await expect(visit.page.locator("tfoot")).to_contain_text("Sum of these 2120200 GiB")


async def test_the_slash_finds_namespaces_and_names(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/pods")
        for text, number in (("batch", 6), ("batch/eval", 3), ("eval", 3), ("nowhere", 0)):
            await visit.page.fill("[data-filter=name]", text)
            await expect(visit.page.locator("tbody tr")).to_have_count(number)


async def test_a_gpu_that_is_unavailable_has_one_reason_everywhere(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/nodes?state=problem")
        await expect(visit.page.locator(".nodes > li")).to_have_count(2)
        await expect(visit.page.locator("#totals a").first).to_have_text("1 node, 1 GPU unavailable")
        for node_name, why in (("gpu-a100-2", "Xid 79"), ("gpu-t4-3", "vcuda agent is down")):
            row = visit.page.locator(".nodes > li", has_text=node_name)
            await expect(row.locator(".problem")).to_have_text(re.compile(f"(GPU 5 )?unavailable: {why}$"))
            tile = row.locator(".gpu.unavailable").first
            await expect(tile).to_have_attribute("aria-label", re.compile(f"; unavailable: {why}$"))
            await tile.click()
            await expect(visit.page.locator(".gpu-card.chosen .problem")).to_have_text(f"unavailable: {why}")
            await visit.page.go_back()


async def test_use_stands_beside_what_is_allocated_and_the_most_idle_first(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/namespaces")
        await expect(visit.page.locator("#totals")).to_contain_text("2,170 of 5,200 allocated, 1,072 used")
        await expect(visit.page.locator("#totals")).to_contain_text("42 % 22 % used")
        await expect(visit.page.locator("#totals")).to_contain_text("(48 of 52 GPUs report)")
        await expect(visit.page.locator("#totals")).to_contain_text("5 unavailable (4 on the unavailable node)")
        names = visit.page.locator("tbody .main")
        await expect(names).to_have_text(["batch", "research", "serving", "training"])
        await expect(visit.page.locator("tfoot")).to_contain_text("Sum of 4301,073 of 2,170")
        await expect(visit.page.locator("tfoot")).to_contain_text("297 (22 %)of 1,370 measured")
        await visit.page.select_option("[data-filter=sort]", "idle:desc")
        await expect(names.first).to_have_text("research")
        await expect(visit.page.locator("tbody tr").first).to_contain_text("153 (96 %)")
        await names.first.locator("a").click()
        await expect(visit.page.locator("[data-filter=namespace]")).to_have_value("research/")
        await expect(visit.page.locator("tbody tr")).to_have_count(9)
        await visit.page.select_option("[data-filter=sort]", "idle:desc")
        await expect(names.first).to_have_text("research/notebook-ann-31")
        await visit.page.fill("[data-filter=namespace]", "b")
        await expect(names).to_have_count(6)
        await visit.page.fill("[data-filter=name]", "render-1")
        await expect(names).to_have_text(["batch/render-1"])
        row = visit.page.locator("tbody tr")
        await expect(row).to_contain_text("100 of 10064 of 80 GiB")
        await row.get_by_role("link", name="1", exact=True).click()
        await expect(visit.page.locator(".gpu-card.chosen h2")).to_contain_text("GPU 1")
        assert visit.problems == []


async def test_a_pod_has_its_gpu_its_use_and_the_last_quarter_of_an_hour(browser: Browser) -> None:
    made = usual()
    async with (
        serving(made, installation=Installation("0.1.0", grafana_url="https://grafana.example.org/")) as url,
        visiting(browser) as visit,
    ):
        await visit.open(f"{url}/ui/#/pods/serving/chat-7b-00")
        main = visit.page.locator("main")
        await expect(main).to_contain_text("No samples yet: vcuda-scheduler-0 keeps one a minute")
        await expect(visit.page.locator(".facts")).to_contain_text(
            "Requested40 cores, 24 GiBAllocated40 cores, 24 GiBNodegpu-a100-1"
        )
        await expect(visit.page.locator("tbody tr")).to_contain_text("36 of 404018 of 24 GiB")
        assert made.views is not None
        await made.views.sample()
        await visit.page.keyboard.press("r")
        await expect(main).to_contain_text("Cores 36 used on average, at most 36; 40 allocated")
        await expect(main).to_contain_text("vcuda-scheduler-0 has no older samples.")
        link = main.get_by_role("link", name="Longer history in Grafana")
        dashboard = "https://grafana.example.org/d/vcuda-namespace?var-namespace=serving&var-pod=chat-7b-00"
        await expect(link).to_have_attribute("href", dashboard)
        await main.get_by_role("link", name="GPU 4").click()
        await expect(visit.page.locator(".gpu-card.chosen h2")).to_contain_text("GPU 4")
        assert (visit.strangers(url), visit.problems) == ([], [])


async def test_a_pod_that_has_ended_is_said_to_be_gone(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/pods/serving/gone")
        await expect(visit.page.locator("main")).to_contain_text("No pod serving/gone requests GPUs and has not ended.")
        await expect(visit.page.locator("#trouble")).to_be_hidden()
        await visit.page.get_by_role("link", name="Back to the list").click()
        await expect(visit.page.locator("h1")).to_have_text("Pods")


async def test_what_is_not_there_has_the_totals_of_the_cluster(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        for where, why in (("pods/serving/gone", "No pod serving/gone"), ("nodes/gone", "No node 'gone'")):
            await visit.page.goto("about:blank")
            await visit.open(f"{url}/ui/#/{where}")
            await expect(visit.page.locator("main")).to_contain_text(why)
            await expect(visit.page.locator("#clock")).to_contain_text("Updated")
            await expect(visit.page.locator("#totals .card")).to_have_count(5)
            await expect(visit.page.locator("#totals")).to_contain_text("1,072 used")


async def test_a_module_that_does_not_arrive_is_said(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.page.route("**/ui/pods.js", lambda route: route.abort())
        await visit.page.goto(f"{url}/ui/")
        await expect(visit.page.locator("#trouble")).to_contain_text("The page could not be loaded")
        await expect(visit.page.locator("#clock")).to_have_text("Not loaded")
        await visit.page.unroute("**/ui/pods.js")
        await visit.page.reload()
        await expect(visit.page.locator(".nodes > li")).to_have_count(8)
        await expect(visit.page.locator("#trouble")).to_be_hidden()


async def test_a_module_that_is_late_is_said_until_it_comes(browser: Browser) -> None:
    """The time passes without waiting for it."""
    async with serving(usual()) as url, visiting(browser) as visit:
        late = asyncio.Event()

        async def wait(route: Route) -> None:
            await late.wait()
            await route.continue_()

        await visit.page.add_init_script("const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms / 50);")
        await visit.page.route("**/ui/pods.js", wait)
        await visit.page.goto(f"{url}/ui/", wait_until="commit")
        await expect(visit.page.locator("#trouble")).to_contain_text("The page could not be loaded")
        late.set()
        await expect(visit.page.locator(".nodes > li")).to_have_count(8)
        await expect(visit.page.locator("#trouble")).to_be_hidden()


async def test_a_visit_loads_again_what_was_lost(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        visit.disturbed, visit.longest_ms = True, 2000
        await visit.page.route("**/ui/pods.js", lambda route: route.abort(), times=1)
        await visit.open(f"{url}/ui/#/namespaces")
        await expect(visit.page.locator("h1")).to_have_text("Namespaces")


async def test_a_tenant_sees_his_pods_and_the_other_namespaces_as_sums(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser, token="tenant") as visit:
        await visit.open(f"{url}/ui/#/namespaces")
        await expect(visit.page.locator("tbody .main")).to_have_text(["research", "other namespaces"])
        for where, about in (("pods", "research/notebook-bob"), ("events", "research/sweep-11")):
            await visit.page.evaluate(f"location.hash = '#/{where}'")
            await expect(visit.page.locator("tbody")).to_contain_text(about)
            assert "training/" not in await visit.text()
        await visit.page.evaluate("location.hash = '#/nodes/gpu-a100-1'")
        await expect(visit.page.locator(".gpu-card").first).to_contain_text(
            "1 pod of namespaces that you may not read."
        )
        await expect(visit.page.locator(".gpu-card h2").last).to_contain_text("NVIDIA A100-SXM4-80GB · free")
        assert "training/" not in await visit.text()
        assert visit.problems == []
        await visit.page.evaluate("location.hash = '#/pods?namespace=serving/'")
        await expect(visit.page.locator("#trouble")).to_contain_text("may not")
        await expect(visit.page.locator("#trouble")).not_to_contain_text("Paste a token")


async def test_an_empty_cluster_names_what_its_operator_has_set(browser: Browser) -> None:
    chosen = Installation("0.1.0", "gpus", "example.org", node_label="pool=gpu,gpus")
    async with serving(MadeCluster(), installation=chosen) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await expect(visit.page.locator("main")).to_contain_text("kubectl label node NODE pool=gpu gpus=")
        await expect(visit.page.locator("#token-dialog")).to_contain_text("kubectl -n gpus create token vcuda-view")
        await visit.page.keyboard.press("3")
        await expect(visit.page.locator("main")).to_contain_text("Pods that ask for example.org/vcuda-core")
    async with serving(MadeCluster(), installation=Installation("0.1.0")) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await expect(visit.page.locator("main")).to_contain_text("yet.This says what is missing:kubectl vcuda doctor")


async def test_an_empty_cluster_says_what_to_do(browser: Browser) -> None:
    async with serving(MadeCluster()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await expect(visit.page.locator("main")).to_contain_text("kubectl label node NODE nvidia-device-enable=enable")
        await expect(visit.page.locator("#totals")).to_contain_text("none with GPUs yet")
        await visit.page.keyboard.press("3")
        await expect(visit.page.locator("main")).to_contain_text("No pod requests a GPU now.")


async def test_claims_are_shown_beside_the_device_plugin(browser: Browser) -> None:
    made = usual()
    one, two = claiming("one", "ours", on="gpu-t4-1"), claiming("two", "ours", on="gpu-t4-1")
    alone = claiming("alone", "mine", on="gpu-t4-1")
    for each in (one, two, alone, claiming("waits", "gone", templates=["vcuda-1x20c8b"], refused="cannot allocate")):
        made.extender.cache.claims.put_pod(each)
    made.extender.cache.claims.put_offer(offer("gpu-t4-1", [9]))
    made.extender.cache.claims.put_claim(allocated("ours", "gpu-t4-1", (9, 30, 8), for_pods=[one, two]))
    made.extender.cache.claims.put_claim(allocated("mine", "gpu-t4-1", (9, 20, 8), for_pods=[alone]))
    async with serving(made) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/nodes/gpu-t4-1")
        card = visit.page.locator(".gpu-card").last
        await expect(card.locator("h2")).to_contain_text("GPU 9")
        await expect(card.locator("h2")).to_contain_text("for claims")
        await expect(card.locator("tbody")).to_contain_text("d/ours gpuclaim ours, 2 containers")
        await expect(card.locator("tbody")).to_contain_text("d/alone mainclaim mine")
        await expect(card.locator("tbody a")).to_have_count(1)
        await visit.page.evaluate("location.hash = '#/pods?namespace=d'")
        await expect(visit.page.locator("tbody")).to_contain_text("d/twoclaim ours")
        await visit.page.evaluate("location.hash = '#/pods/d/waits'")
        await expect(visit.page.locator(".sentence")).to_contain_text("ResourceClaim d/gone does not exist")
        await expect(visit.page.locator("main")).to_contain_text("kube-scheduler says: cannot allocate")
        assert visit.problems == []


async def test_events_come_by_themselves_the_newest_first(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/events")
        first = visit.page.locator("tbody tr").first
        await expect(first).to_contain_text("memory request larger than any GPU")
        await expect(visit.page.locator("tbody")).to_contain_text("gpu-t4-3")
        made.extender.put_node(node("gpu-t4-2", 4, model=T4, blocks=60, ill=[3]))
        await expect(first).to_contain_text("GPU 3 unavailable: Xid 79", timeout=15_000)
        await visit.page.select_option("[data-filter=kind]", "node")
        await expect(visit.page.locator("tbody tr")).to_have_count(1)
        await expect(first).to_contain_text("unavailable")
        assert visit.problems == []


async def test_hostile_texts_are_shown_as_texts(browser: Browser) -> None:
    made = MadeCluster()
    made.add_node("node-a", 2, HOSTILE)
    made.extender.warm_up()
    made.runs(f"ns/{HOSTILE.replace('/', '')}", "node-a", 0, 10, 8)
    made.uses["node-a"]["containers"][0]["over_limit"] = [HOSTILE]  # type: ignore[index]
    made.waits(f"ns/{HOSTILE.replace('/', '')}2", 100, 10000)
    async with serving(made) as url, visiting(browser) as visit:
        for where in ("nodes", "nodes/node-a", "pods", "pending", "events"):
            await visit.open(f"{url}/ui/#/{where}")
            await expect(visit.page.locator("main")).to_contain_text("<img src=x onerror=")
        await visit.open(f"{url}/ui/#/nodes/%E0%A4%A?{HOSTILE}")
        assert await visit.page.locator("main img, main script").count() == 0
        assert "owned" not in await visit.page.title()
        assert [each for each in visit.problems if "404" not in each] == []


async def test_the_policy_stops_what_a_script_would_do(browser: Browser) -> None:
    """That the policy is enforced, not only sent: HTML from text, styles and requests to others are refused."""
    async with serving(usual(), live=False) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        tried = """async () => {
            const done = [];
            try { document.body.innerHTML = '<b>x</b>'; done.push('html'); } catch {}
            try { await fetch('https://example.org/'); done.push('fetch'); } catch {}
            const script = document.createElement('script');
            try { script.text = 'window.ran = 1'; document.body.append(script); } catch {}
            return [...done, ...(window.ran ? ['script'] : [])];
        }"""
        assert await visit.page.evaluate(tried) == []


async def test_filters_are_in_the_fragment_and_ask_the_server(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await visit.page.keyboard.press("/")
        await visit.page.keyboard.type("h100")
        await expect(visit.page.locator(".nodes > li")).to_have_count(2)
        assert visit.page.url.endswith("/ui/#/nodes?name=h100")
        await visit.page.fill("[data-filter=name]", "")
        await visit.page.select_option("[data-filter=model]", A100)
        await expect(visit.page.locator(".nodes > li")).to_have_count(3)
        await visit.page.select_option("[data-filter=state]", "problem")
        await expect(visit.page.locator(".nodes > li")).to_have_count(1)
        await expect(visit.page.locator("[data-filter=model]")).to_have_value(A100)
        assert any(query.get("model") == A100 and query.get("state") == "problem" for _, query in made.asked)


async def test_everything_is_reached_by_keys(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await visit.page.keyboard.press("Tab")
        await expect(visit.page.locator(".skip")).to_be_focused()
        row, stops = visit.page.locator("[data-row]:focus"), 1
        while not await row.count():
            await visit.page.keyboard.press("Tab")
            stops += 1
        assert stops <= 30
        assert await visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("h1")).to_have_text("gpu-a100-1")
        await expect(visit.page.locator("main")).to_be_focused()
        await visit.page.keyboard.press("Escape")
        for key, title in enumerate(("Nodes", "Namespaces", "Pods", "Pending pods", "Events"), 1):
            await visit.page.keyboard.press(str(key))
            await expect(visit.page.locator("h1")).to_have_text(title)
        await visit.page.keyboard.press("?")
        await expect(visit.page.locator("#keys-dialog")).to_be_visible()
        await visit.page.keyboard.press("Escape")
        await visit.page.keyboard.press("p")
        await expect(visit.page.locator("[data-action=pause]")).to_have_attribute("aria-pressed", "true")
        assert await visit.page.evaluate(_UNNAMED) == 0


_UNNAMED = """[...document.querySelectorAll('a,button,input,select')]
    .filter((e) => !e.ariaLabel && !e.textContent.trim() && !e.labels?.length).length"""


async def test_rows_are_moved_through_as_in_k9s(browser: Browser) -> None:
    async with serving(usual()) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/#/pods")
        focused = visit.page.locator("[data-row]:focus")
        for key, name in (("j", "eval-0"), ("j", "eval-1"), ("ArrowDown", "eval-2"), ("k", "eval-1"), ("r", "eval-1")):
            await visit.page.keyboard.press(key)
            await expect(focused).to_have_text(f"batch/{name}")
        await visit.page.keyboard.press("/")
        await visit.page.keyboard.type("notebook")
        await expect(visit.page.locator("tbody tr")).to_have_count(7)
        await visit.page.keyboard.press("Escape")
        for key in ("j", "j", "j"):
            await visit.page.keyboard.press(key)
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("h1")).to_have_text("research/notebook-ann-11 Bound")
        await visit.page.keyboard.press("Escape")
        await expect(visit.page.locator("tbody tr")).to_have_count(7)
        await expect(visit.page.locator("[data-row][tabindex='0']")).to_have_text("research/notebook-ann-11")
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("h1")).to_have_text("research/notebook-ann-11 Bound")
        for _ in range(2):
            await visit.page.keyboard.press("Escape")
            await expect(visit.page.locator("h1")).to_have_text("Pods")
        await expect(visit.page.locator("[data-filter=name]")).to_have_value("")
        await expect(visit.page.locator("tbody tr")).not_to_have_count(7)


async def test_focus_stays_where_it_is_when_the_page_refreshes(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        third = visit.page.locator(".nodes .name").nth(2)
        await third.focus()
        made.add_node("gpu-new", 2, A100)
        await visit.page.keyboard.press("r")
        await expect(visit.page.locator(".nodes > li")).to_have_count(9)
        await expect(third).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 740), (1440, 900)])
async def test_it_is_readable_light_dark_wide_and_narrow(browser: Browser, scheme: str, size: tuple[int, int]) -> None:
    async with serving(usual()) as url, visiting(browser, scheme=scheme, size=size) as visit:  # type: ignore[arg-type]
        for where in _SCREENS:
            await visit.open(f"{url}/ui/#/{where}")
            assert await visit.page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert await visit.page.evaluate(_FAINT) == []
        back = await visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back))) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", [360, 390, 500])
async def test_no_number_is_cut_on_a_phone(browser: Browser, width: int) -> None:
    for made in (usual(), large()):
        async with serving(made) as url, visiting(browser, size=(width, 740)) as visit:
            node_name = min(made.uses)
            for where in ("namespaces", "pods", "pending", "events", f"nodes/{node_name}", "pods/serving/chat-7b-00"):
                await visit.open(f"{url}/ui/#/{where}")
                await visit.page.wait_for_load_state("networkidle")
                assert await visit.page.evaluate(_CUT) == [], where


_CUT = """[...document.querySelectorAll('td')].filter((e) => e.scrollWidth > e.clientWidth + 1)
    .map((e) => `${e.dataset.name} ${e.textContent}`)"""
_SCREENS = (
    *("nodes", "nodes/gpu-a100-1", "namespaces", "pods", "pending", "events"),
    *("pods/research/sweep-11", "pods/serving/chat-7b-00"),
)
_FAINT = """() => {
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (c) => c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4;
    const light = (rgb) => rgb.slice(0, 3).map(linear)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (e) => {
        const c = numbers(getComputedStyle(e).backgroundColor);
        return c.length < 4 || c[3] > 0 ? c : e.parentElement ? behind(e.parentElement) : [255, 255, 255];
    };
    const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const seen = [...document.querySelectorAll('body *')].filter((e) => own(e) && e.checkVisibility() && !e.disabled);
    return seen.filter((e) => {
        const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05) < 4.5;
    }).map((e) => `${e.className} ${e.textContent.slice(0, 40)}`);
}"""
"""Texts with less contrast than WCAG's 4.5."""


async def test_a_broken_connection_is_said_and_repaired(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        made.broken = 503
        await visit.page.keyboard.press("r")
        await expect(visit.page.locator("#trouble")).to_have_text(
            re.compile(r"The scheduler is not ready yet: it has not read the cluster's nodes\. Trying again in \d+ s\.")
        )
        await expect(visit.page.locator(".nodes > li")).to_have_count(8)
        made.broken = 0
        await expect(visit.page.locator("#trouble")).to_be_hidden(timeout=20_000)
        await visit.page.context.set_offline(True)
        await visit.page.keyboard.press("r")
        await expect(visit.page.locator("#trouble")).to_contain_text("The scheduler does not answer. Trying again")
        await visit.page.context.set_offline(False)
        await expect(visit.page.locator("#trouble")).to_be_hidden(timeout=20_000)


async def test_a_hidden_or_paused_page_asks_nothing(browser: Browser) -> None:
    made = usual()
    async with serving(made) as url, visiting(browser) as visit:
        await visit.page.add_init_script("const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms / 50);")
        await visit.open(f"{url}/ui/")
        for stop, go_on in ((_HIDE, _SHOW), (_PAUSE, _PAUSE)):
            await visit.page.evaluate(stop)
            await visit.page.wait_for_timeout(200)  # what was under way ends
            made.asked.clear()
            await visit.page.wait_for_timeout(800)  # eight times as long as between two refreshes
            assert made.asked == []
            async with visit.page.expect_response(re.compile("view/nodes")):
                await visit.page.evaluate(go_on)


_HIDDEN = "Object.defineProperty(document, 'hidden', { configurable: true, get: () => %s });"
_HIDE = _HIDDEN % "true" + "document.dispatchEvent(new Event('visibilitychange'))"
_SHOW = _HIDDEN % "false" + "document.dispatchEvent(new Event('visibilitychange'))"
_PAUSE = "document.querySelector('[data-action=pause]').click()"


async def test_five_thousand_nodes_with_forty_thousand_gpus_stay_small(browser: Browser) -> None:
    made = MadeCluster()
    for number in range(5000):
        made.add_node(f"node-{number:04}", 8, A100)
    async with serving(made, live=False) as url, visiting(browser) as visit:
        await visit.open(f"{url}/ui/")
        await expect(visit.page.locator("#totals")).to_contain_text("40,000")
        await expect(visit.page.locator(".nodes > li")).to_have_count(50)
        for first in ("node-0050", "node-0100", "node-0150"):
            await visit.page.keyboard.press("n")
            await expect(visit.page.locator(".nodes .name").first).to_have_text(first)
        await visit.page.keyboard.press("b")
        await expect(visit.page.locator(".pager")).to_contain_text("101–150 of 5000")
        session = await visit.page.context.new_cdp_session(visit.page)
        await session.send("HeapProfiler.collectGarbage")
        heap = await session.send("Runtime.getHeapUsage")
        counters = await session.send("Memory.getDOMCounters")
        assert heap["usedSize"] + heap.get("embedderHeapUsedSize", 0) < 50 << 20
        assert counters["nodes"] < 30_000
        assert visit.problems == []
