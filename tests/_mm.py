import sys,os,time,json,threading,random,tempfile,pathlib,urllib.request
import harness, test_member
from test_member import *
MEM=sys.argv[1]; FILL=int(sys.argv[2])
class M(Member):
    def __init__(self, folder, number, coordinator):
        self.native_port=0
        self.joins=("--coordinator",coordinator,"--cluster","t")
        harness.Duramen.__init__(self,folder,memory=MEM,level=None,dir=folder/f"m{number}",threads=2)
folder=pathlib.Path(tempfile.mkdtemp(dir="/tmp/mm"))
c=Coordinator(folder).start()
ms=[M(folder,n,c.address).start() or None for n in range(0)]
ms=[]
for n in range(4):
    m=M(folder,n,c.address); m.start(); ms.append(m)
def slots():
    return ms[0].info("cluster")
subprocess.run([harness.BINARY,"table","create","db0","--coordinator",c.address],check=True); time.sleep(3)
stop=False
most={}
def watch(m):
    while not stop:
        try:
            r=m.rss_bytes()
            if r>most.get(m,(0,))[0]:
                parts=None
                try: parts=json.loads(m.page("/memory"))
                except Exception: pass
                most[m]=(r,parts,time.time()-t0)
        except Exception: pass
        time.sleep(0.02)
t0=time.time()
ws=[threading.Thread(target=watch,args=(m,),daemon=True) for m in ms]; [w.start() for w in ws]
import redis
from redis.cluster import RedisCluster
rc=RedisCluster(host="127.0.0.1",port=ms[0].port)
val=os.urandom(1000)
n=0; t=time.time()
def fill(a,b):
    rc=RedisCluster(host="127.0.0.1",port=ms[0].port)
    p=rc.pipeline()
    for i in range(a,b):
        p.set("k%d"%i,val)
        if i%64==63: p.execute(); 
    p.execute()
ths=[threading.Thread(target=fill,args=(j*FILL//4,(j+1)*FILL//4)) for j in range(4)]
[x.start() for x in ths]; [x.join() for x in ths]
print("filled",round(time.time()-t,1),"s")
def show(what):
    for m in ms:
        if m in most:
            r,p,at=most[m]
            print(what,m.port,round(r/2**20,1),"MiB at",round(at,1), {k:round(v/2**20,1) for k,v in p["parts"].items()} if p and "parts" in p else str(p)[:300])
show("fill"); 
time.sleep(3); print("after", [round(m.rss_bytes()/2**20,1) for m in ms])
most.clear()
pr=subprocess.Popen(["perf","record","-o","/tmp/mm/perf.data","-e","page-faults","-c","1","--call-graph","dwarf,16384","-p",str(ms[0].process.pid)],stderr=subprocess.DEVNULL) if len(sys.argv)>3 else None; time.sleep(0.5)
ms[3].kill(); dead=ms.pop()
t=time.time()
while time.time()-t<60:
    try:
        if rc.get("k%d"%(FILL//2)) and all(rc.get("k%d"%i)==val for i in range(0,FILL,max(1,FILL//50))): break
    except Exception as e: time.sleep(0.1)
time.sleep(2)
if pr: pr.send_signal(2); pr.wait()
print("recovered",round(time.time()-t,1)); time.sleep(1)
show("recovery"); time.sleep(5); print("after", [round(m.rss_bytes()/2**20,1) for m in ms])
stop=True
for m in ms+[c]: m.kill()
